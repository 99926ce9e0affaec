// The parameters in the address of the page: ?dashboard=whyidle-run&prometheus=...&from=...&to=...&var-run=...

const parameters = new URLSearchParams(window.location.search);

export const dashboardUid = parameters.get('dashboard');
export const about = parameters.get('about') ?? '';

/** Whether folded rows are drawn unfolded. */
export const unfold = parameters.has('unfold');

/** The time range, in seconds since 1970. */
export const range = { from: Number(parameters.get('from')), to: Number(parameters.get('to')) };

/** Grafana's own variables for the length of the time range. */
export const rangeNames = {
  __range: `${Math.round(range.to - range.from)}s`,
  __range_s: `${Math.round(range.to - range.from)}`,
};

export const dataSource = {
  url: parameters.get('prometheus'),
  scrapeSeconds: Number(parameters.get('scrape') ?? 15),
};

/** The values of a variable in the address. Empty if it is not set. */
export const chosen = (name) => parameters.getAll(`var-${name}`);
