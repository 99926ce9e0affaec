// State timelines and status histories. Grafana publishes no component for them: this is our own plain drawing.

import { FieldType } from '@grafana/data';

import { range } from './address.js';
import { stepOf } from './prometheus.js';

const LEGEND_HEIGHT = 22;
const AXIS_HEIGHT = 18;
const LETTER_WIDTH = 6.6;
const MOST_NAME_WIDTH = 220;

/** One row per series. With `merge`, neighbouring cells with the same value become one cell with its text. */
export function Cells({ panel, frames, width, height, theme, merge = false }) {
  const rows = frames.map((frame) => ({ name: frame.name, cells: cellsOf(frame, stepOf(panel, width) * 1000, merge) }));
  const left = Math.min(MOST_NAME_WIDTH, 12 + LETTER_WIDTH * Math.max(...rows.map(({ name }) => name.length)));
  const legend = panel.options.legend?.showLegend === false ? [] : legendOf(rows);
  const bottom = AXIS_HEIGHT + (legend.length ? LEGEND_HEIGHT : 0);
  const rowHeight = (height - bottom) / rows.length;
  const x = (time) => left + ((time / 1000 - range.from) / (range.to - range.from)) * (width - left - 4);
  return (
    <svg {...{ width, height }} fontFamily={theme.typography.fontFamily} fontSize={12}>
      {rows.map(({ name, cells }, index) => (
        <g key={`${name} ${index}`} transform={`translate(0 ${index * rowHeight})`}>
          <text x={left - 8} y={rowHeight / 2 + 4} textAnchor="end" fill={theme.colors.text.primary}>
            {shortened(name)}
          </text>
          {cells.map((cell) => (
            <Cell key={cell.from} {...{ cell, x, rowHeight, theme, merge, end: width - 4 }} />
          ))}
        </g>
      ))}
      {ticks().map((time) => (
        <text key={time} x={x(time)} y={height - bottom + 14} textAnchor="middle" fill={theme.colors.text.secondary}>
          {new Date(time).toISOString().slice(11, 19)}
        </text>
      ))}
      <Legend entries={legend} y={height - 6} theme={theme} />
    </svg>
  );
}

function Cell({ cell, x, rowHeight, theme, merge, end }) {
  const start = x(cell.from);
  const wide = Math.max(Math.min(x(cell.to), end) - start - (merge ? 1 : 0.5), 0.5);
  const fits = merge && cell.text.length * LETTER_WIDTH < wide - 6;
  return (
    <>
      <rect x={start} y={1} width={wide} height={Math.max(rowHeight - 2, 1)} fill={cell.color} fillOpacity={0.9} />
      {fits && (
        <text x={start + 5} y={rowHeight / 2 + 4} fill={theme.colors.getContrastText(cell.color)}>
          {cell.text}
        </text>
      )}
    </>
  );
}

function Legend({ entries, y, theme }) {
  let x = 8;
  return entries.map(({ text, color }) => {
    const start = x;
    x += 32 + text.length * LETTER_WIDTH;
    return (
      <g key={text}>
        <rect x={start} y={y - 9} width={14} height={9} fill={color} />
        <text x={start + 20} y={y} fill={theme.colors.text.primary}>
          {text}
        </text>
      </g>
    );
  });
}

function cellsOf(frame, step, merge) {
  const times = frame.fields.find(({ type }) => type === FieldType.time).values;
  const field = frame.fields.find(({ type }) => type === FieldType.number);
  const cells = [];
  times.forEach((from, index) => {
    const value = field.values[index];
    if (value === null || Number.isNaN(value)) {
      return;
    }
    const { text, suffix = '', color } = field.display(value);
    const last = cells.at(-1);
    if (merge && last?.value === value && from - last.to < step / 2) {
      last.to = from + step;
    } else {
      cells.push({ from, to: from + step, value, text: text + suffix, color });
    }
  });
  return cells;
}

function legendOf(rows) {
  const entries = new Map();
  rows.forEach(({ cells }) => cells.forEach(({ text, color }) => entries.set(text, { text, color })));
  return entries.size <= 12 ? [...entries.values()] : [];
}

function ticks() {
  const count = 4;
  const apart = (range.to - range.from) / (count + 1);
  return Array.from({ length: count }, (_, index) => Math.round(range.from + apart * (index + 1)) * 1000);
}

const shortened = (name) => (name.length * LETTER_WIDTH < MOST_NAME_WIDTH - 12 ? name : `${name.slice(0, 30)}…`);
