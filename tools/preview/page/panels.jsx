// The kinds of panels: Grafana's own components where they are published, otherwise our own plain drawing.

import { dateTime, getDisplayValueAlignmentFactors, getFieldDisplayValues, renderMarkdown, VizOrientation } from '@grafana/data';
import { BarGaugeNamePlacement } from '@grafana/schema';
import { BarGauge, BigValue, LegendDisplayMode, TimeSeries, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

import { range } from './address.js';
import { Cells } from './cells.jsx';
import { interpolate } from './variables.js';

const momentOf = (seconds) => dateTime(seconds * 1000);
const raw = { from: momentOf(range.from), to: momentOf(range.to) };
const timeRange = { ...raw, raw };

function Trend({ panel, frames, width, height }) {
  const { legend = {} } = panel.options;
  const hidden = { ...legend, displayMode: LegendDisplayMode.Hidden, showLegend: false };
  return (
    <TimeSeries
      {...{ frames, width, height, timeRange }}
      timeZone="utc"
      options={panel.options}
      legend={legend.showLegend === false ? hidden : { calcs: [], ...legend }}
    />
  );
}

function displayed(panel, frames, theme, sparkline) {
  return getFieldDisplayValues({
    ...{ data: frames, theme, sparkline, fieldConfig: panel.fieldConfig, replaceVariables: interpolate, timeZone: 'utc' },
    reduceOptions: panel.options.reduceOptions,
  });
}

function Stat({ panel, frames, width, height, theme }) {
  const { graphMode, colorMode, textMode, justifyMode } = panel.options;
  const source = () => displayed(panel, frames, theme, graphMode !== 'none');
  return (
    <VizRepeater
      {...{ width, height, source }}
      getValues={source}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      orientation={VizOrientation.Auto}
      autoGrid
      itemSpacing={3}
      renderCounter={0}
      renderValue={({ value, width, height, count, alignmentFactors }) => (
        <BigValue
          {...{ width, height, count, alignmentFactors, theme, graphMode, colorMode, textMode, justifyMode }}
          value={value.display}
          sparkline={graphMode === 'none' ? undefined : value.sparkline}
        />
      )}
    />
  );
}

function Bars({ panel, frames, width, height, theme }) {
  const { displayMode, showUnfilled, valueMode } = panel.options;
  const source = () => displayed(panel, frames, theme, false);
  return (
    <VizRepeater
      {...{ width, height, source }}
      getValues={source}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      orientation={VizOrientation.Horizontal}
      minVizHeight={16}
      maxVizHeight={40}
      itemSpacing={6}
      renderCounter={0}
      renderValue={({ value, width, height, alignmentFactors }) => (
        <BarGauge
          {...{ width, height, theme, displayMode, showUnfilled, alignmentFactors }}
          value={value.display}
          field={value.field}
          text={panel.options.text}
          orientation={VizOrientation.Horizontal}
          valueDisplayMode={valueMode}
          namePlacement={BarGaugeNamePlacement.Left}
        />
      )}
    />
  );
}

function Table({ panel, frames, width, height }) {
  const [frame] = frames;
  if (!frame?.length) {
    return <NoData panel={panel} />;
  }
  return (
    <div className="table">
      <TableNG
        {...{ width, height, timeRange }}
        data={frame}
        sortBy={panel.options.sortBy}
        cellHeight={panel.options.cellHeight}
        noHeader={panel.options.showHeader === false}
        fieldConfig={panel.fieldConfig}
        enableVirtualization={false}
        disableKeyboardEvents
        structureRev={1}
      />
    </div>
  );
}

const Text = ({ panel }) => <div dangerouslySetInnerHTML={{ __html: renderMarkdown(interpolate(panel.options.content)) }} />;

export const NoData = ({ panel }) => <div className="no-data">{panel.fieldConfig.defaults.noValue ?? 'No data'}</div>;

/** Kind -> component, and whether it is also drawn without data. */
export const KINDS = {
  timeseries: { Drawn: Trend },
  stat: { Drawn: Stat, always: true },
  bargauge: { Drawn: Bars },
  table: { Drawn: Table },
  text: { Drawn: Text, always: true },
  'state-timeline': { Drawn: (props) => <Cells {...props} merge /> },
  'status-history': { Drawn: Cells },
};
