// The whole page: a banner that says what it is, the variables, and the panels of one dashboard on Grafana's grid.

import { createTheme, LoadingState, ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelChrome, PanelContextProvider, PortalContainer } from '@grafana/ui';
import { Component, useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

import { about, dashboardUid, range, unfold } from './address.js';
import { finished } from './fields.js';
import { KINDS, NoData } from './panels.jsx';
import { framesOf } from './prometheus.js';
import { interpolate, settle, settled } from './variables.js';

const theme = createTheme({ colors: { mode: 'dark' } });
const PAGE_WIDTH = 1440;
const MARGIN = 16;
const GAP = 8;
const ROW_HEIGHT = 30;
const COLUMN_WIDTH = (PAGE_WIDTH - 2 * MARGIN + GAP) / 24;

// shoot.mjs reads this: how many panels are not drawn yet, and what failed.
window.preview = { pending: 1, errors: [] };

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const place = { left: x * COLUMN_WIDTH, top: y * (ROW_HEIGHT + GAP), width: w * COLUMN_WIDTH - GAP, height: h * ROW_HEIGHT + (h - 1) * GAP };
  if (panel.type === 'row') {
    return (
      <h2 style={{ ...place, position: 'absolute' }}>
        {panel.title} {panel.panels?.length > 0 && <small>({panel.panels.length} panels, folded)</small>}
      </h2>
    );
  }
  return (
    <section style={{ ...place, position: 'absolute' }}>
      <PanelChrome
        {...{ width: place.width, height: place.height }}
        title={interpolate(panel.title)}
        hoverHeader={!panel.title}
        description={panel.description}
        padding="md"
        loadingState={LoadingState.Done}
      >
        {(width, height) => (
          <Fence name={panel.title}>
            <Filled {...{ panel, width, height }} />
          </Fence>
        )}
      </PanelChrome>
    </section>
  );
}

function Filled({ panel, width, height }) {
  const [state, setState] = useState();
  useEffect(() => {
    const asked = panel.targets ? framesOf(panel, Math.round(width)).then((raw) => finished(panel, raw, theme)) : Promise.resolve([]);
    asked.then((frames) => setState({ frames }), (error) => setState({ error: failed(panel.title, error) }));
  }, []);
  useEffect(() => {
    if (state) {
      window.preview.pending -= 1;
    }
  }, [state]);
  if (!state || state.error) {
    return <div className="no-data">{state?.error ?? '…'}</div>;
  }
  const { Drawn, always } = KINDS[panel.type];
  return always || state.frames.length ? <Drawn {...{ panel, width, height, theme }} frames={state.frames} /> : <NoData panel={panel} />;
}

function failed(title, error) {
  const text = String(error?.message ?? error);
  window.preview.errors.push(`${title}: ${text}`);
  return text;
}

class Fence extends Component {
  state = {};
  static getDerivedStateFromError = (error) => ({ error });
  componentDidCatch(error) {
    failed(this.props.name, error);
  }
  render() {
    return this.state.error ? <div className="no-data">{String(this.state.error)}</div> : this.props.children;
  }
}

function Page({ dashboard, panels }) {
  const height = Math.max(...panels.map(({ gridPos }) => gridPos.y + gridPos.h)) * (ROW_HEIGHT + GAP);
  const time = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <PanelContextProvider value={{ eventsScope: 'global', eventBus: NOBODY, canAddAnnotations: () => false }}>
        <p className="banner">
          <b>A preview, not Grafana.</b> Drawn from the dashboard’s JSON and a live Prometheus with Grafana’s published
          components (@grafana/ui); heat maps and state timelines are drawn plainly by the preview itself, annotations
          not at all. {about}
        </p>
        <header>
          <h1>{dashboard.title}</h1>
          {settled(dashboard.templating.list).map(([label, value]) => (
            <span key={label}>
              {label} <b>{value}</b>
            </span>
          ))}
          <span>
            {time(range.from)} to <b>{time(range.to)}</b> UTC
          </span>
        </header>
        <main style={{ height }}>
          {panels.map((panel) => (
            <Panel key={panel.id} panel={panel} />
          ))}
        </main>
        <PortalContainer />
      </PanelContextProvider>
    </ThemeContext.Provider>
  );
}

// An event bus that does nothing: there is no cursor to share between panels.
const NOBODY = {
  publish() {},
  getStream: () => ({ pipe: () => ({ subscribe: () => ({ unsubscribe() {} }) }), subscribe: () => ({ unsubscribe() {} }) }),
  subscribe: () => ({ unsubscribe() {} }),
  removeAllListeners() {},
  newScopedBus: () => NOBODY,
};

/** Opens folded rows: puts their panels below them, and moves the following panels down. */
function unfolded(panels) {
  let added = 0;
  return panels.flatMap((panel) => {
    const moved = (one, by) => ({ ...one, gridPos: { ...one.gridPos, y: one.gridPos.y + by } });
    const row = moved(panel, added);
    const inner = panel.panels ?? [];
    const top = Math.min(...inner.map(({ gridPos }) => gridPos.y));
    const bottom = Math.max(...inner.map(({ gridPos }) => gridPos.y + gridPos.h));
    added += inner.length ? bottom - top : 0;
    return [{ ...row, panels: [] }, ...inner.map((one) => moved(one, row.gridPos.y + 1 - top))];
  });
}

try {
  const dashboard = await (await fetch(`dashboards/${dashboardUid}.json`)).json();
  await settle(dashboard.templating.list);
  const panels = unfold ? unfolded(dashboard.panels) : dashboard.panels;
  window.preview.pending = panels.filter(({ type }) => type !== 'row').length;
  createRoot(document.getElementById('root')).render(<Page {...{ dashboard, panels }} />);
} catch (error) {
  window.preview.pending = 0;
  document.getElementById('root').textContent = failed(dashboardUid, error);
}
