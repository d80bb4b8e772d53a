import { useSignal } from '@preact/signals'

/*
 * A chart of values over time, in plain SVG. The pointer or the arrow keys select one interval, and the values of this
 * interval are shown. For screen readers, the chart is a slider whose text is these values.
 */

const WIDTH = 600
const HEIGHT = 120
/** Space above the highest tick, for its label. */
const TOP = 22
const TICKS_MAX = 3

/**
 * Values of one line. Null means that the interval has no value. An interval without calls, for example, has no mean
 * queue time.
 */
export interface ChartSeries {
  readonly name: string
  /** CSS class that sets the colour. */
  readonly mark: 'running' | 'waiting' | 'failed'
  readonly values: readonly (number | null)[]
}

export interface ChartProps {
  readonly label: string
  readonly series: readonly ChartSeries[]
  /** Text of the time of the interval with this number. */
  readonly timeOf: (nth: number) => string
  readonly textOf: (value: number) => string
  /** Draws one bar per interval instead of lines. */
  readonly hasBars?: boolean
}

export function Chart({ label, series, timeOf, textOf, hasBars = false }: ChartProps) {
  const chosen = useSignal<number | undefined>(undefined)
  const count = series[0]?.values.length ?? 0
  const ticks = ticksOf(series.flatMap(({ values }) => values.map((value) => value ?? 0)))
  const most = ticks.at(-1) ?? 0
  const at = chosen.value === undefined ? undefined : Math.min(chosen.value, count - 1)
  const text = (nth: number) =>
    `${timeOf(nth)}: ${series.map(({ name, values }) => `${name} ${shown(values[nth], textOf)}`).join(', ')}`
  const point = (event: PointerEvent) => {
    const { left, width } = (event.currentTarget as HTMLElement).getBoundingClientRect()
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
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
        <path class="ground" d={ticks.map((tick) => `M0 ${yOf(tick, most)}H${WIDTH}`).join('')} />
        {series.map((one, nth) => (
          <g key={one.name} class={one.mark}>
            {hasBars ? (
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
        <div class={at < count / 2 ? 'values' : 'values left'} aria-hidden="true">
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
  )
}

/** Zero and at most {@link TICKS_MAX} multiples of 1, 2 or 5 × 10^n. The last one is not below any value. Counts have no fractions. */
export function ticksOf(values: readonly number[]): readonly number[] {
  const most = Math.max(0, ...values)
  if (most === 0) return [0]
  const power = Math.floor(Math.log10(most / TICKS_MAX))
  const steps = [1, 2, 5, 10].map((factor) => (power < 0 ? factor / 10 ** -power : factor * 10 ** power))
  const isCount = values.every(Number.isInteger)
  const step = steps.find((one) => one * TICKS_MAX >= most && (one >= 1 || !isCount)) ?? 1
  // A multiple of a fraction such as 0.2 would be 0.6000000000000001.
  return Array.from({ length: Math.ceil(most / step) + 1 }, (_, nth) => Number((nth * step).toPrecision(12)))
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
 * @param isPoint True: draws only values without a neighbour, each as a dot. False: draws only lines of at least two
 * values. A dot is a very short stroke with round ends
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
    return `M${left.toFixed(1)} ${HEIGHT - 1}V${yOf(value, most).toFixed(1)}h${width.toFixed(1)}V${HEIGHT - 1}Z`
  }
  return values.map(bar).join('')
}
