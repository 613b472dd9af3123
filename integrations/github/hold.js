// The main and the post step of the action: the first run acquires, the second releases.
'use strict';
const { spawnSync } = require('child_process');
const fs = require('fs');
const path = require('path');

const hold = path.join(__dirname, '..', 'kofm-hold');

function run(args) {
  const done = spawnSync(hold, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });
  return { code: done.status === null ? 1 : done.status, text: done.stdout || '' };
}

const held = process.env.STATE_kofm;
if (held) {
  const { code } = run(['stop', held]);
  if (code === 76) {
    console.log('::error::the lease was lost while the job ran; its units may have been in use twice');
  }
  process.exit(code);
}

const want = (process.env.INPUT_WANT || '').split(/\s+/).filter(Boolean);
if (want.length === 0) {
  console.log('::error::input want: must name at least one pool, as gpu:2');
  process.exit(64);
}
const dir = path.join(fs.mkdtempSync(path.join(process.env.RUNNER_TEMP || '/tmp', 'kofm-')), 'hold');
const reason = `${process.env.GITHUB_REPOSITORY || ''} run ${process.env.GITHUB_RUN_ID || ''}`.trim();
const options = ['--wait', process.env.INPUT_WAIT || '1h', '--ttl', process.env.INPUT_TTL || '2m'];
const { code, text } = run(['start', dir, ...want, ...options, '--reason', reason]);
if (code !== 0) {
  process.exit(code);
}
// The post step finds the directory here.
fs.appendFileSync(process.env.GITHUB_STATE, `kofm=${dir}\n`);
for (const line of text.split('\n')) {
  // The id of the lease is a secret: it stays in the directory.
  if (line && !line.startsWith('KOFM_LEASE=')) {
    fs.appendFileSync(process.env.GITHUB_ENV, `${line}\n`);
  }
}
