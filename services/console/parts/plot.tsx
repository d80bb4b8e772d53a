const WIDTH = 300
const HEIGHT = 64
/** Moments across the whole width. */
const MOMENTS = 150

/** One line of a plot. */
export interface Series {
  /** Also its colour: `running` or `waiting`. */
  readonly name: string
  readonly values: readonly number[]
}

interface PlotProps {
  readonly label: string
  readonly series: readonly Series[]
  /** Moments across the whole width; default: those of five minutes. */
  readonly moments?: number
  /** The top of the scale is at least this; default: 1. */
  readonly topMin?: number
  /** How the top of the scale is written. */
  readonly textOf?: (most: number) => string
}

/** Lines over some time, the newest at the right, on one scale. */
export function Plot({ label, series, moments = MOMENTS, topMin = 1, textOf = String }: PlotProps) {
  // What is beyond every bound is drawn at the top of the scale.
  const most = Math.max(topMin, ...series.flatMap(({ values }) => values.filter(Number.isFinite)))
  return (
    <div class="plot">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        <path class="ground" d={`M0 ${HEIGHT - 1}H${WIDTH}`} />
        {series.map(({ name, values }) => (
          <g key={name} class={name}>
            <path class="area" d={`${lineOf(values, most, moments)}V${HEIGHT}H${startOf(values, moments)}Z`} />
            <path class="line" d={lineOf(values, most, moments)} />
          </g>
        ))}
      </svg>
      <span class="most dim" aria-hidden="true">
        {textOf(most)}
      </span>
    </div>
  )
}

function startOf(values: readonly number[], moments: number): number {
  return WIDTH - ((Math.max(values.length, 2) - 1) / (moments - 1)) * WIDTH
}

function lineOf(values: readonly number[], most: number, moments: number): string {
  const all = values.length === 1 ? [values[0] ?? 0, values[0] ?? 0] : values
  const points = all.map((value, nth) => {
    const x = WIDTH - ((all.length - 1 - nth) / (moments - 1)) * WIDTH
    return `${x.toFixed(1)} ${(HEIGHT - 2 - (Math.min(value, most) / most) * (HEIGHT - 6)).toFixed(1)}`
  })
  return `M${points.join('L')}`
}
