const WIDTH = 300
const HEIGHT = 64
/** Number of samples that fill the width of the chart: five minutes, with one sample per 2 s. */
const SAMPLES = 150
/** Minimum value at the top of the scale, so that small values do not fill the chart. */
const TOP_MIN = 1

interface Series {
  /** CSS class of the line, which sets its colour: `running` or `waiting`. */
  readonly mark: string
  readonly values: readonly number[]
}

interface PlotProps {
  readonly label: string
  readonly series: readonly Series[]
  readonly textOf: (most: number) => string
}

/** A line chart over time on one scale, newest at the right. If all values are zero, then a flat line is drawn. */
export function Plot({ label, series, textOf }: PlotProps) {
  const most = Math.max(TOP_MIN, ...series.flatMap(({ values }) => values))
  const isFlat = series.every(({ values }) => values.every((value) => value === 0))
  return (
    <div class={isFlat ? 'plot flat' : 'plot'}>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        <path class="ground" d={`M0 ${HEIGHT - 1}H${WIDTH}`} />
        {series.map(({ mark, values }) => (
          <g key={mark} class={mark}>
            <path class="area" d={`${lineOf(values, most)}V${HEIGHT}H${startOf(values)}Z`} />
            <path class="line" d={lineOf(values, most)} />
          </g>
        ))}
      </svg>
      <span class="most dim" aria-hidden="true">
        {textOf(most)}
      </span>
    </div>
  )
}

function startOf(values: readonly number[]): number {
  return WIDTH - ((Math.max(values.length, 2) - 1) / (SAMPLES - 1)) * WIDTH
}

function lineOf(values: readonly number[], most: number): string {
  const all = values.length === 1 ? [values[0] ?? 0, values[0] ?? 0] : values
  const points = all.map((value, nth) => {
    const x = WIDTH - ((all.length - 1 - nth) / (SAMPLES - 1)) * WIDTH
    return `${x.toFixed(1)} ${(HEIGHT - 2 - (value / most) * (HEIGHT - 6)).toFixed(1)}`
  })
  return `M${points.join('L')}`
}
