import { cosine, nearestPair } from './cosine.ts'

interface HeatMapProps {
  readonly lines: readonly string[]
  readonly vectors: readonly (readonly number[])[]
}

/** Cosine similarity of all pairs; a stronger colour means more similar. */
export function HeatMap({ lines, vectors }: HeatMapProps) {
  const rows = vectors.map((a) => vectors.map((b) => cosine(a, b)))
  const nearest = nearestPair(rows)
  return (
    <>
      {nearest && (
        <p>
          Most similar: {nearest.a + 1} and {nearest.b + 1} (cosine {nearest.value.toFixed(2)}).
        </p>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard. */}
      <section class="heat" tabIndex={0} aria-label="Similarities">
        <table>
          <caption class="visually-hidden">Cosine similarity of each pair of lines</caption>
          <thead>
            <tr>
              <td />
              {lines.map((line, nth) => (
                <th key={`${nth}-${line}`} scope="col" title={line}>
                  {nth + 1}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row, nth) => (
              <tr key={`${nth}-${lines[nth]}`}>
                <th scope="row" title={lines[nth]}>
                  <span class="nth">{nth + 1}</span> {lines[nth]}
                </th>
                {row.map((value, other) => (
                  <td
                    key={`${other}-${lines[other]}`}
                    class="cell"
                    style={{ '--share': Math.max(0, value).toFixed(3) }}
                    title={`${nth + 1} and ${other + 1}: ${value.toFixed(4)}`}
                  >
                    {value.toFixed(2)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </>
  )
}
