import type { Samples } from './samples.ts'

/** Formats a number with a fixed count of decimals. NaN becomes a dash. */
export function show(value: number, decimals: number): string {
  return Number.isFinite(value) ? value.toFixed(decimals) : '–'
}

export function percent(share: number | undefined, decimals = 1): string {
  return share === undefined ? '–' : `${show(share * 100, decimals)} %`
}

export function renderTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]) => `| ${cells.join(' | ')} |`
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n')
}

/** A column of a table of samples. Shows a figure of the target, or the ratio of this figure to that of a base target. */
export interface Column {
  readonly title: string
  readonly figure: string
  readonly decimals: number
  readonly ratioTo?: string
  readonly addedTo?: string
}

export function renderSamples(
  samples: Samples,
  titles: Readonly<Record<string, string>>,
  loads: readonly string[],
  columns: readonly Column[],
): string {
  const value = (target: string, load: string, { figure, ratioTo, addedTo }: Column) => {
    if (ratioTo !== undefined) return samples.ratio(target, ratioTo, load, figure)
    return addedTo === undefined ? samples.median(target, load, figure) : samples.added(target, addedTo, load, figure)
  }
  const rows = loads.flatMap((load) =>
    samples.targets.map((target) => [
      load,
      titles[target] ?? target,
      ...columns.map((column) => show(value(target, load, column), column.decimals)),
    ]),
  )
  return renderTable(['load', 'through', ...columns.map(({ title }) => title)], rows)
}

export interface Goal {
  readonly name: string
  readonly measured: number
  readonly unit: string
  readonly decimals?: number
  readonly min?: number
  readonly max?: number
}

/** Renders a table of goals. Goals that were not measured are omitted. */
export function renderGoals(goals: readonly Goal[]): string {
  const rows = goals
    .filter(({ measured }) => !Number.isNaN(measured))
    .map(({ name, measured, unit, decimals = 2, min = Number.NEGATIVE_INFINITY, max = Number.POSITIVE_INFINITY }) => [
      name,
      `${Number.isFinite(min) ? `≥ ${min}` : `≤ ${max}`} ${unit}`.trim(),
      `${show(measured, decimals)} ${unit}`.trim(),
      measured >= min && measured <= max ? 'reached' : '**missed**',
    ])
  return rows.length === 0 ? 'No goal was measured.' : renderTable(['goal', 'limit', 'measured', ''], rows)
}
