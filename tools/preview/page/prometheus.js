// Queries Prometheus and returns data frames, as Grafana's data source does.

import { FieldType, rangeUtil } from '@grafana/data';

import { dataSource, range, rangeNames } from './address.js';
import { interpolate } from './variables.js';

// Grafana assumes a scrape interval of 15 s. The preview's Prometheus scrapes more often.
const SCRAPE_SECONDS = dataSource.scrapeSeconds;

async function ask(path, parameters) {
  const answer = await fetch(`${dataSource.url}/api/v1/${path}`, { method: 'POST', body: new URLSearchParams(parameters) });
  const { status, error, data } = await answer.json();
  if (status !== 'success') {
    throw new Error(error);
  }
  return data;
}

/** The values of a label of the series that match in the time range. */
export async function labelValues(label, selector) {
  const query = new URLSearchParams({ 'match[]': selector, start: range.from, end: range.to });
  const answer = await fetch(`${dataSource.url}/api/v1/label/${label}/values?${query}`);
  return (await answer.json()).data;
}

/** The results of a query at the end of the time range, as Grafana writes them for variables. */
export async function resultsAsText(query) {
  const { result } = await ask('query', { query, time: range.to });
  return result.map(({ metric: { __name__: name = '', ...labels }, value: [time, value] }) => {
    const inside = Object.entries(labels).map(([label, text]) => `${label}="${text}"`);
    return `${name}{${inside.join(',')}} ${value} ${time * 1000}`;
  });
}

/** The seconds between two points of a panel that is `width` points wide. */
export function stepOf(panel, width) {
  const points = Math.min(panel.maxDataPoints ?? width, 11000);
  const rounded = rangeUtil.roundInterval(((range.to - range.from) * 1000) / points) / 1000;
  return Math.max(rounded, SCRAPE_SECONDS);
}

/** The frames of all queries of a panel. */
export async function framesOf(panel, width) {
  const step = stepOf(panel, width);
  const builtin = {
    __interval: `${step}s`,
    __interval_ms: `${step * 1000}`,
    __rate_interval: `${Math.max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS)}s`,
    ...rangeNames,
  };
  const shown = panel.targets.filter((target) => !target.hide);
  const answers = await Promise.all(
    shown.map(async (target) => {
      const query = interpolate(target.expr, builtin);
      const data = target.instant
        ? await ask('query', { query, time: range.to })
        : await ask('query_range', { query, start: align(range.from, step), end: align(range.to, step), step });
      return toFrames(target, data, step, shown.length);
    })
  );
  return answers.flat();
}

const align = (time, step) => Math.floor(time / step) * step;

function toFrames(target, { resultType, result }, step, queries) {
  const series = resultType === 'scalar' ? [{ metric: {}, value: result }] : result;
  return target.format === 'table' ? [toTable(target, series, queries)] : series.map((one) => toSeries(target, one, step));
}

function toTable(target, series, queries) {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const column = (name, type, values) => ({ name, type, config: {}, values });
  const name = queries > 1 ? `Value #${target.refId}` : 'Value';
  return {
    refId: target.refId,
    length: series.length,
    fields: [
      column('Time', FieldType.time, series.map(({ value }) => value[0] * 1000)),
      ...labels.map((label) => column(label, FieldType.string, series.map(({ metric }) => metric[label] ?? ''))),
      column(name, FieldType.number, series.map(({ value }) => Number(value[1]))),
    ],
  };
}

function toSeries(target, { metric, value, values }, step) {
  const points = value ? [value] : withGaps(values, step);
  const displayNameFromDS = nameOf(target.legendFormat, metric);
  return {
    refId: target.refId,
    name: displayNameFromDS,
    length: points.length,
    fields: [
      { name: 'Time', type: FieldType.time, config: { interval: step * 1000 }, values: points.map(([time]) => time * 1000) },
      {
        name: 'Value',
        type: FieldType.number,
        labels: metric,
        config: { displayNameFromDS },
        values: points.map(([, text]) => (text === null ? null : Number(text))),
      },
    ],
  };
}

/** Adds nulls where a series has gaps, so that no lines are drawn across them. */
function withGaps(values, step) {
  return values.flatMap((point, index) => {
    const before = values[index - 1];
    return before && point[0] - before[0] > 1.5 * step ? [[before[0] + step, null], point] : [point];
  });
}

function nameOf(format, metric) {
  if (format && format !== '__auto') {
    return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
  }
  const { __name__: name = '', ...labels } = metric;
  const inside = Object.entries(labels).map(([label, text]) => `${label}="${text}"`);
  return inside.length ? `${name}{${inside.join(', ')}}` : name || 'Value';
}
