// Calls of the HTTP API with the token of this tab, and the stream of events.

const KEY = 'kofm-token';

// A link may bring a token: http://site/#token=TOKEN. It is removed from the address at once.
const given = new URLSearchParams(location.hash.slice(1)).get('token');
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, '', location.pathname);
}

export const token = () => sessionStorage.getItem(KEY) ?? '';
export function setToken(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function request(method, path, body, signal) {
  const headers = {};
  if (token()) headers.authorization = `Bearer ${token()}`;
  if (body !== undefined) headers['content-type'] = 'application/json';
  const init = { method, headers, signal, cache: 'no-store' };
  if (body !== undefined) init.body = JSON.stringify(body);
  const response = await fetch(path, init).catch(error => {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'unreachable', 'The site does not answer. The page shows the last answer.');
  });
  if (response.ok) return response;
  const error = await response.json().catch(() => ({}));
  throw new ApiError(response.status, error.error, error.message ?? `The site answered ${response.status}.`);
}

// An answer, the sites that did not contribute to it, and when it came.
export async function read(path, signal) {
  const response = await request('GET', path, undefined, signal);
  const value = await response.json();
  const missing = (response.headers.get('kofm-missing') ?? '').split(',').filter(Boolean);
  return { value, missing, received: performance.now() };
}

export async function call(method, path, body) {
  return (await request(method, path, body)).json();
}

// Events until the connection ends.
export async function* events() {
  const response = await request('GET', '/v1/events');
  yield null;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split('\n').filter(line => line.startsWith('data:')).map(line => line.slice(5));
      if (data.length) yield JSON.parse(data.join('\n'));
    }
  }
}
