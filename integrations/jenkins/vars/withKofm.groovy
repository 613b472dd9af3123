// withKofm('gpu:2', 'licence') { sh './train.sh' }
// withKofm(wait: '30m', 'gpu:2') { ... }
//
// A step of a shared library. The agent needs kofm and kofm-hold in PATH, and KOFM_ADDR.
def call(Object... arguments) {
    // Named arguments come first, as a map; the block comes last.
    def options = arguments[0] instanceof Map ? arguments[0] : [:]
    def body = arguments[-1]
    def want = arguments.findAll { it instanceof CharSequence }.collect { it.toString() }
    if (want.isEmpty() || !(body instanceof Closure)) {
        error "withKofm: must have at least one pool and a block: withKofm('gpu:2') { ... }"
    }
    def dir = "${pwd(tmp: true)}/kofm-${UUID.randomUUID()}"
    def wait = options.wait ?: '1h'
    def ttl = options.ttl ?: '2m'
    def quoted = want.collect { "'" + it.replace("'", "'\\''") + "'" }.join(' ')
    def text = sh(
        label: "kofm acquire ${want.join(' ')}",
        returnStdout: true,
        script: "kofm-hold start '${dir}' ${quoted} --wait '${wait}' --ttl '${ttl}' --reason \"\$BUILD_URL\""
    )
    try {
        withEnv(text.readLines()) {
            body()
        }
    } finally {
        sh(label: 'kofm release', script: "kofm-hold stop '${dir}'")
    }
}
