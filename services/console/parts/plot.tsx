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

/** Lines over the last five minutes, the newest at the right, on one scale. */
export function Plot({ label, series }: { readonly label: string; readonly series: readonly Series[] }) {
  const most = Math.max(1, ...series.flatMap(({ values }) => values))
  return (
    <div class="plot">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        <path class="ground" d={`M0 ${HEIGHT - 1}H${WIDTH}`} />
        {series.map(({ name, values }) => (
          <g key={name} class={name}>
            <path class="area" d={`${lineOf(values, most)}V${HEIGHT}H${startOf(values)}Z`} />
            <path class="line" d={lineOf(values, most)} />
          </g>
        ))}
      </svg>
      <span class="most dim" aria-hidden="true">
        {most}
      </span>
    </div>
  )
}

function startOf(values: readonly number[]): number {
  return WIDTH - ((Math.max(values.length, 2) - 1) / (MOMENTS - 1)) * WIDTH
}

function lineOf(values: readonly number[], most: number): string {
  const all = values.length === 1 ? [values[0] ?? 0, values[0] ?? 0] : values
  const points = all.map((value, nth) => {
    const x = WIDTH - ((all.length - 1 - nth) / (MOMENTS - 1)) * WIDTH
    return `${x.toFixed(1)} ${(HEIGHT - 2 - (value / most) * (HEIGHT - 6)).toFixed(1)}`
  })
  return `M${points.join('L')}`
}
