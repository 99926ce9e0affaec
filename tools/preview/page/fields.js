// Applies units, thresholds, mappings and overrides to the fields of frames, and the transformations of tables.

import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  FieldConfigOptionsRegistry,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
} from '@grafana/data';
import { lastValueFrom } from 'rxjs';

import { interpolate } from './variables.js';

standardTransformersRegistry.setInit(() =>
  [...new Map(Object.values(standardTransformers).map((one) => [one.id, one])).values()].map((one) => ({
    ...{ id: one.id, name: one.name },
    transformation: async () => one,
  }))
);

/** The options that a panel's field configuration may have: here, all that it has. */
function registryOf({ defaults, overrides }) {
  const ids = new Set(overrides.flatMap(({ properties }) => properties.map(({ id }) => id)));
  for (const [name, value] of Object.entries(defaults)) {
    const inner = name === 'custom' ? Object.keys(value).map((key) => `custom.${key}`) : [name];
    inner.forEach((id) => ids.add(id));
  }
  return new FieldConfigOptionsRegistry(() => [...ids].map(option));
}

function option(id) {
  const isCustom = id.startsWith('custom.');
  return {
    ...{ id, isCustom, name: id, path: isCustom ? id.slice('custom.'.length) : id },
    process: (value) => value,
    shouldApply: () => true,
  };
}

/** The frames of a panel, ready to be shown. */
export async function finished(panel, frames, theme) {
  const context = { interpolate };
  const data = await lastValueFrom(transformDataFrame(panel.transformations ?? [], frames, context));
  const fields = applyFieldOverrides({
    ...{ data, theme, fieldConfig: panel.fieldConfig, timeZone: 'utc' },
    replaceVariables: interpolate,
    fieldConfigRegistry: registryOf(panel.fieldConfig),
  });
  cacheFieldDisplayNames(fields); // the table's headers show only these cached names
  return fields;
}
