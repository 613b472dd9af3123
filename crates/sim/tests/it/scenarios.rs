//! The stories in `scenarios/`, told again.

use std::fs;
use std::path::Path;

use kofm_sim::script::retell;

/// With `KOFM_RETELL=1` the files are rewritten: read the difference, and keep it only if you
/// understand it.
#[test]
fn every_story_is_told_as_before() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut stories: Vec<_> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    stories.sort();
    assert!(stories.len() >= 5, "the stories are gone");
    let rewrite = std::env::var_os("KOFM_RETELL").is_some();
    for path in stories {
        let before = fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let now = retell(&before).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        if rewrite {
            fs::write(&path, now).unwrap();
        } else {
            assert!(before == now, "{name} is told differently now:\n{now}");
        }
    }
}
