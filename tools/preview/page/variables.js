// The variables of a dashboard: their values, and replacing them in texts.

import { chosen, rangeNames } from './address.js';
import { labelValues, resultsAsText } from './prometheus.js';

const values = new Map();
const QUERY_RESULT = /^query_result\((.*)\)$/;
const LABEL_VALUES = /^label_values\((.*), *(\w+)\)$/;
const PLACE = /\$(?:\{(\w+)(?::(\w+))?\}|(\w+))/g;

/** Grafana's formats for values. Several values are an array. All is a pattern and stays as it is. */
const FORMATS = {
  json: (value) => JSON.stringify(value),
  regex: (value) => (Array.isArray(value) ? `(${value.map(escaped).join('|')})` : value),
};

/** Sets all variables in their order: the queries of later ones may contain earlier ones. */
export async function settle(variables) {
  for (const variable of variables) {
    values.set(variable.name, await valueOf(variable));
  }
}

/** Name -> text that is shown for the variable. */
export function settled(variables) {
  return variables
    .filter(({ type, hide }) => type !== 'datasource' && !hide)
    .map(({ name, label }) => [label ?? name, values.get(name) === '.*' ? 'All' : [values.get(name)].flat().join(', ')]);
}

/** The text with its variables replaced. Unknown variables stay. */
export function interpolate(text, builtin = {}) {
  return text.replace(PLACE, (place, braced, format, bare) => {
    const value = builtin[braced ?? bare] ?? values.get(braced ?? bare);
    return value === undefined ? place : (FORMATS[format] ?? String)(value);
  });
}

function escaped(value) {
  return value.replace(/[\\^$*+?.()|[\]{}/]/g, '\\$&');
}

async function valueOf({ name, type, multi, includeAll, allValue, current, query, regex }) {
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
  const found = (await listed(query.query, regex)).sort();
  return includeAll ? found : (found[0] ?? '');
}

/** The values that a variable's query finds. A pattern takes them from the text of each result. */
async function listed(query, regex) {
  const [, expression] = QUERY_RESULT.exec(query) ?? [];
  if (expression) {
    const pattern = new RegExp(regex.slice(1, -1));
    const found = (await resultsAsText(interpolate(expression, rangeNames))).map((text) => pattern.exec(text));
    return found.filter(Boolean).map(([, value]) => value);
  }
  const [, selector, label] = LABEL_VALUES.exec(query);
  return labelValues(label, interpolate(selector));
}
