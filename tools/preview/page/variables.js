// The variables of a dashboard: what they stand at, and their places in texts.

import { chosen } from './address.js';
import { labelValues } from './prometheus.js';

const values = new Map();
const LABEL_VALUES = /^label_values\((.*), *(\w+)\)$/;
const PLACE = /\$(?:\{(\w+)(?::(\w+))?\}|(\w+))/g;

/** As Grafana writes a value where a format is asked for. Of several values, an array; All is a pattern as it is. */
const FORMATS = {
  json: (value) => JSON.stringify(value),
  regex: (value) => (Array.isArray(value) ? `(${value.map(escaped).join('|')})` : value),
};

/** Settles all variables, in their order: the later ones may ask with the earlier ones. */
export async function settle(variables) {
  for (const variable of variables) {
    values.set(variable.name, await valueOf(variable));
  }
}

/** Name -> what is shown for it. */
export function settled(variables) {
  return variables
    .filter(({ type, hide }) => type !== 'datasource' && !hide)
    .map(({ name, label }) => [label ?? name, values.get(name) === '.*' ? 'All' : [values.get(name)].flat().join(', ')]);
}

/** The text with its variables replaced; unknown ones stay. */
export function interpolate(text, builtin = {}) {
  return text.replace(PLACE, (place, braced, format, bare) => {
    const value = builtin[braced ?? bare] ?? values.get(braced ?? bare);
    return value === undefined ? place : (FORMATS[format] ?? String)(value);
  });
}

function escaped(value) {
  return value.replace(/[\\^$*+?.()|[\]{}/]/g, '\\$&');
}

async function valueOf({ name, type, multi, includeAll, allValue, current, query }) {
  const wanted = chosen(name);
  if (wanted.length) {
    return multi ? wanted : wanted[0];
  }
  if (type !== 'query') {
    return current?.value;
  }
  if (includeAll && allValue) {
    return allValue;
  }
  const [, selector, label] = LABEL_VALUES.exec(query.query);
  const found = (await labelValues(label, interpolate(selector))).sort();
  return includeAll ? found : (found[0] ?? '');
}
