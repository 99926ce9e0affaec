// What the address of the page says: ?dashboard=whyidle-run&prometheus=...&from=...&to=...&var-run=...

const parameters = new URLSearchParams(window.location.search);

export const dashboardUid = parameters.get('dashboard');
export const about = parameters.get('about') ?? '';

/** Whether folded rows are drawn unfolded. */
export const unfold = parameters.has('unfold');

/** Unix times, in seconds. */
export const range = { from: Number(parameters.get('from')), to: Number(parameters.get('to')) };

export const dataSource = {
  url: parameters.get('prometheus'),
  scrapeSeconds: Number(parameters.get('scrape') ?? 15),
};

/** What a variable was set to, or nothing. */
export const chosen = (name) => parameters.getAll(`var-${name}`);
