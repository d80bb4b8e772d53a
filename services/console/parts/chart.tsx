import { useSignal } from '@preact/signals'

/*
 * A chart of values over time, in plain SVG. The pointer or the arrow keys select one interval, and the values of this
 * interval are shown. For screen readers, the chart is a slider whose text is these values.
 */

const WIDTH = 600
const HEIGHT = 120
/** Space above the highest tick, in units of the view box. The label of the tick is drawn there. */
const TOP = 22
const TICKS_MAX = 3
/**
 * Minimum height of a bar above zero, in units of the view box: about a pixel. A few failures among many requests therefore stay visible. With a
 * larger minimum, the bar would show a larger value than the series has.
 */
const BAR_MIN = 1.5

/**
 * Values of one line. Null means that the interval has no value. An interval without calls, for example, has no mean
 * queue time.
 */
export interface ChartSeries {
  readonly name: string
  /** CSS class that sets the colour. */
  readonly mark: 'running' | 'waiting' | 'failed'
  readonly values: readonly (number | null)[]
  /** Draws this series as bars. The other series of the chart remain lines, on the same scale. */
  readonly hasBars?: boolean
}

export interface ChartProps {
  readonly label: string
  readonly series: readonly ChartSeries[]
  readonly timeOf: (nth: number) => string
  readonly textOf: (value: number) => string
  /** Returns the label of the nth interval on the time axis. */
  readonly axisOf: (nth: number) => string
  readonly labelsMax?: number
  /** Draws all series as bars instead of lines. */
  readonly hasBars?: boolean
}

export function Chart({ label, series, timeOf, textOf, axisOf, labelsMax = 7, hasBars = false }: ChartProps) {
  const chosen = useSignal<number | undefined>(undefined)
  const count = series[0]?.values.length ?? 0
  const ticks = ticksOf(series.flatMap(({ values }) => values.map((value) => value ?? 0)))
  const most = ticks.at(-1) ?? 0
  const at = chosen.value === undefined ? undefined : Math.min(chosen.value, count - 1)
  const text = (nth: number) =>
    `${timeOf(nth)}: ${series.map(({ name, values }) => `${name} ${shown(values[nth], textOf)}`).join(', ')}`
  const point = (event: PointerEvent) => {
    const plot = (event.currentTarget as HTMLElement).querySelector('svg')
    if (!plot) return
    const { left, width } = plot.getBoundingClientRect()
    chosen.value = Math.max(0, Math.min(count - 1, Math.floor(((event.clientX - left) / width) * count)))
  }
  const press = (event: KeyboardEvent) => {
    const last = count - 1
    const from = at ?? last
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key]
    if (event.key === 'Escape') chosen.value = undefined
    if (to === undefined) return
    event.preventDefault()
    chosen.value = Math.max(0, Math.min(last, to))
  }
  return (
    <div
      class="chart"
      role="slider"
      tabIndex={0}
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={Math.max(0, count - 1)}
      aria-valuenow={at ?? count - 1}
      aria-valuetext={count === 0 ? 'no values' : text(at ?? count - 1)}
      onPointerMove={point}
      onPointerDown={point}
      onPointerLeave={() => {
        chosen.value = undefined
      }}
      onBlur={() => {
        chosen.value = undefined
      }}
      onKeyDown={press}
    >
      <div class="plotted">
        <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          <path class="ground" d={ticks.map((tick) => `M0 ${yOf(tick, most)}H${WIDTH}`).join('')} />
          {series.map((one, nth) => (
            <g key={one.name} class={one.mark}>
              {hasBars || one.hasBars ? (
                <path class="bars" d={barsOf(one.values, most)} />
              ) : (
                <>
                  {nth === 0 && <path class="area" d={areasOf(one.values, most)} />}
                  <path class="line" d={linesOf(one.values, most)} />
                  <path class="line point" d={linesOf(one.values, most, true)} />
                </>
              )}
            </g>
          ))}
          {at !== undefined && <path class="cursor" d={`M${xOf(at, count)} 0V${HEIGHT}`} />}
        </svg>
        {ticks.map((tick) => (
          <span
            key={tick}
            class="tick dim"
            aria-hidden="true"
            style={{ bottom: `${100 - (yOf(tick, most) / HEIGHT) * 100}%` }}
          >
            {tick === 0 ? '0' : textOf(tick)}
          </span>
        ))}
        {at !== undefined && (
          <div class="values" style={besideOf((at + 0.5) / count)} aria-hidden="true">
            <strong>{timeOf(at)}</strong>
            {series.map(({ name, mark, values }) => (
              <span key={name}>
                <span class={`mark ${mark}`} />
                {name} {shown(values[at], textOf)}
              </span>
            ))}
          </div>
        )}
      </div>
      <p class="dim axis" aria-hidden="true">
        {labelledOf(count, labelsMax).map((nth) => (
          <span key={nth} style={{ left: `${((nth + 0.5) / count) * 100}%` }}>
            {axisOf(nth)}
          </span>
        ))}
      </p>
    </div>
  )
}

/**
 * Returns the CSS position of the box with the values of an interval: next to the interval, on the side with more space.
 * @param share Position of the interval from 0 to 1
 */
function besideOf(share: number) {
  const gap = (part: number) => `calc(${part * 100}% + 12px)`
  return share < 0.5 ? { left: gap(share) } : { right: gap(1 - share) }
}

/** Returns the indices of the intervals that get a label: all of them, or `most` at equal distances if there are more. */
export function labelledOf(count: number, most: number): readonly number[] {
  const length = Math.min(count, most)
  return Array.from({ length }, (_, nth) => Math.floor(((nth + 0.5) * count) / length))
}

/**
 * Returns the ticks of the value axis: zero, and at most {@link TICKS_MAX} multiples of 1, 2 or 5 × 10^n. The last tick is not below any
 * value. For whole values, the ticks are whole too.
 */
export function ticksOf(values: readonly number[]): readonly number[] {
  const most = Math.max(0, ...values)
  if (most === 0) return [0]
  const power = Math.floor(Math.log10(most / TICKS_MAX))
  const steps = [1, 2, 5, 10].map((factor) => (power < 0 ? factor / 10 ** -power : factor * 10 ** power))
  const isCount = values.every(Number.isInteger)
  const step = steps.find((one) => one * TICKS_MAX >= most && (one >= 1 || !isCount)) ?? 1
  // Rounding is needed because 3 × 0.2 is 0.6000000000000001 in floating point.
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, nth) => Number((nth * step).toPrecision(12)))
}

export function peakOf({ values }: ChartSeries): number {
  return Math.max(0, ...values.map((value) => value ?? 0))
}

function shown(value: number | null | undefined, textOf: ChartProps['textOf']): string {
  return value === null || value === undefined ? '–' : textOf(value)
}

function xOf(nth: number, count: number): number {
  return ((nth + 0.5) / count) * WIDTH
}

function yOf(value: number, most: number): number {
  return HEIGHT - 1 - (most > 0 ? value / most : 0) * (HEIGHT - TOP)
}

/** Splits the values at gaps. Each run of consecutive values becomes one line. */
function runsOf(values: readonly (number | null)[]): readonly (readonly (readonly [number, number])[])[] {
  const runs: [number, number][][] = [[]]
  values.forEach((value, nth) => {
    if (value === null) runs.push([])
    else runs.at(-1)?.push([nth, value])
  })
  return runs.filter((run) => run.length > 0)
}

/**
 * Returns the SVG path of the lines between gaps. A single value between two gaps is not a line, so it is drawn as a dot: a very short
 * stroke with round ends.
 *
 * @param isPoint True: only the dots. False: only the lines of at least two values.
 */
function linesOf(values: readonly (number | null)[], most: number, isPoint = false): string {
  const point = ([nth, value]: readonly [number, number]) =>
    `${xOf(nth, values.length).toFixed(1)} ${yOf(value, most).toFixed(1)}`
  return runsOf(values)
    .filter((run) => (run.length === 1) === isPoint)
    .map((run) => `M${run.map(point).join('L')}${isPoint ? 'h0.1' : ''}`)
    .join('')
}

function areasOf(values: readonly (number | null)[], most: number): string {
  const x = (nth: number) => xOf(nth, values.length).toFixed(1)
  return runsOf(values)
    .map((run) => {
      const line = run.map(([nth, value]) => `L${x(nth)} ${yOf(value, most).toFixed(1)}`).join('')
      return `M${x(run[0]?.[0] ?? 0)} ${HEIGHT}${line}V${HEIGHT}Z`
    })
    .join('')
}

function barsOf(values: readonly (number | null)[], most: number): string {
  const width = (WIDTH / values.length) * 0.7
  const bar = (value: number | null, nth: number) => {
    if (!value) return ''
    const left = xOf(nth, values.length) - width / 2
    const top = Math.min(yOf(value, most), HEIGHT - 1 - BAR_MIN)
    return `M${left.toFixed(1)} ${HEIGHT - 1}V${top.toFixed(1)}h${width.toFixed(1)}V${HEIGHT - 1}Z`
  }
  return values.map(bar).join('')
}
