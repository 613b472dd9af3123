// The rights of the principal whose token this tab has. The site decides; the page only leaves out
// buttons that would be refused.

import { ApiError, read } from './api.js';

let me = { name: null, rules: ['admin:*'] };

export async function learn() {
  try {
    me = (await read('/v1/principal')).value;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
  }
  return me;
}

const GRANTS = { acquire: ['acquire', 'release-own'], 'release-any': ['release-any', 'release-own'] };

function matches(pattern, name) {
  const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, '\\$&');
  return new RegExp(`^${escaped.replaceAll('*', '.*').replaceAll('?', '.')}$`).test(name);
}

export function may(verb, names) {
  const allows = (rule, name) => {
    const [verbs, pattern] = rule.split(':');
    const granted = verbs.split(',').some(it => it === 'admin' || (GRANTS[it] ?? [it]).includes(verb));
    return granted && matches(pattern, name);
  };
  return names.every(name => me.rules.some(rule => allows(rule, name)));
}

const mine = row => me.name != null && row.principal === me.name;
export const mayRelease = row => may(mine(row) ? 'release-own' : 'release-any', Object.keys(row.units));
export const mayCancel = row => may(mine(row) ? 'release-own' : 'operate', Object.keys(row.want));
