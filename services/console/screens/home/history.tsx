import { batch, effect, signal } from '@preact/signals'
import type { z } from 'zod'
import type { HistoryRange, HistoryReport } from '#schemas/usage.ts'
import { ApiFailure, fetchJson, isOperator, isSignedIn, messageOf } from '#services/console/api/client.ts'
import {
  clockText,
  dateTimeText,
  dayOfMonthText,
  latencyText,
  minuteText,
  usdText,
} from '#services/console/api/clock.ts'
import { Chart, type ChartSeries, peakOf } from '#services/console/parts/chart.tsx'
import { usePoll } from '#services/console/parts/parts.tsx'
import { queryParam, setQuery } from '#services/console/parts/router.ts'
import { LoadState } from '#services/console/parts/states.tsx'

const REFRESH_INTERVAL_MS = 15_000
const RANGES: Readonly<Record<HistoryRange, string>> = {
  ...{ '15m': '15 min', '1h': '1 h', '6h': '6 h', '24h': '24 h', '7d': '7 days' },
}
type Report = z.infer<typeof HistoryReport>
type Point = Report['data'][number]

const DAY_SECONDS = 86_400

const report = signal<Report | undefined>(undefined)
const problem = signal('')
/** True if there is no history to show: the service has no database, or the key may not read the history. */
const isMissing = signal(false)

// The history is cleared at sign-out, because the next key of the tab may belong to another project.
effect(() => {
  if (isSignedIn.value) return
  batch(() => {
    report.value = undefined
    problem.value = ''
    isMissing.value = false
  })
})

export function History() {
  const range = rangeOf()
  usePoll(REFRESH_INTERVAL_MS, (abort) => refresh(range, abort), [range, isOperator.value])
  if (isMissing.value) return null
  const shown = report.value
  return (
    <section class="history" aria-label="History">
      <div class="title">
        <h2>History {isOperator.value === false && <span class="dim">of this project</span>}</h2>
        <fieldset class="chips" aria-label="Range">
          {Object.entries(RANGES).map(([id, name]) => (
            <button
              key={id}
              type="button"
              class="chip"
              aria-pressed={id === range}
              onClick={() => setQuery({ range: id === '1h' ? '' : id })}
            >
              {name}
            </button>
          ))}
        </fieldset>
      </div>
      {problem.value && <LoadState problem={problem.value} isLoaded={shown !== undefined} />}
      <Charts report={shown} />
    </section>
  )
}

function rangeOf(): HistoryRange {
  const asked = queryParam('range')
  return Object.hasOwn(RANGES, asked) ? (asked as HistoryRange) : '1h'
}

async function refresh(range: HistoryRange, abort: AbortSignal): Promise<void> {
  try {
    report.value = await fetchJson<Report>(`/v1/history?range=${range}`, { signal: abort })
    isMissing.value = false
    problem.value = ''
  } catch (error) {
    if (abort.aborted || !isSignedIn.value) return
    isMissing.value = isRefusal(error)
    problem.value = messageOf(error)
  }
}

/**
 * Whether the service has no history for this key. A 503 means that the service has no database. If a history was already shown, then a 503
 * only means that the service is restarting.
 */
function isRefusal(error: unknown): boolean {
  if (!(error instanceof ApiFailure)) return false
  return error.status === 403 || (error.status === 503 && report.value === undefined)
}

const perSecond = (value: number) => `${Number(value.toPrecision(2)).toLocaleString('en')}/s`
const count = (value: number) => value.toLocaleString('en')

interface Figure {
  readonly name: string
  readonly textOf: (value: number) => string
  readonly lines: readonly (readonly [name: string, mark: ChartSeries['mark'], of: (point: Point) => number | null])[]
}

function figuresOf(step: number): readonly Figure[] {
  return [
    {
      name: 'Requests',
      textOf: perSecond,
      lines: [
        ['requests', 'running', ({ calls }) => calls / step],
        ['failed', 'failed', ({ failed }) => failed / step],
      ],
    },
    {
      name: 'Tokens',
      textOf: perSecond,
      lines: [
        ['output', 'running', ({ output_tokens }) => output_tokens / step],
        ['input', 'waiting', ({ input_tokens }) => input_tokens / step],
      ],
    },
    {
      name: 'Running and queued',
      textOf: count,
      lines: [
        ['running', 'running', ({ running }) => running],
        ['queued', 'waiting', ({ waiting }) => waiting],
      ],
    },
    {
      name: 'Time in the queue',
      textOf: latencyText,
      lines: [
        ['mean', 'running', ({ queue_seconds }) => queue_seconds],
        ['maximum', 'waiting', ({ queue_seconds_max }) => queue_seconds_max],
      ],
    },
    {
      name: 'Time to first token',
      textOf: latencyText,
      lines: [
        ['mean', 'running', ({ first_output_seconds }) => first_output_seconds],
        ['maximum', 'waiting', ({ first_output_seconds_max }) => first_output_seconds_max],
      ],
    },
    { name: 'Cost', textOf: usdText, lines: [['cost', 'running', ({ cost_usd }) => cost_usd]] },
  ]
}

/** The charts. Until the report is loaded, they are empty but have their size, so that the page below does not move. */
function Charts({ report }: { readonly report: Report | undefined }) {
  const { data, step_seconds: step } = report ?? { data: [], step_seconds: 1 }
  const timeOf = (nth: number) => (step < 60 ? dateTimeText : minuteText)(data[nth]?.at ?? 0)
  const axisOf = (nth: number) => {
    const at = data[nth]?.at ?? 0
    return step * data.length <= DAY_SECONDS ? clockText(at) : dayOfMonthText(at)
  }
  return (
    <div class="grid">
      {figuresOf(step).map(({ name, textOf, lines }) => {
        const series = lines.map(([line, mark, of]): ChartSeries => {
          return { name: line, mark, values: data.map(of), hasBars: mark === 'failed' }
        })
        return (
          <figure key={name} class="card">
            <figcaption>
              <strong>{name}</strong>
              <span class="legend dim">
                {series.map((one) => (
                  <span key={one.name}>
                    <span class={`mark ${one.mark}`} />
                    {one.name}
                    {one.hasBars && report && `, at most ${textOf(peakOf(one))}`}
                  </span>
                ))}
              </span>
            </figcaption>
            {series.every((one) => peakOf(one) === 0) ? (
              <p class="dim no-values">{report ? 'No values in this range.' : 'Loading…'}</p>
            ) : (
              <Chart label={`${name} over time`} labelsMax={4} {...{ series, timeOf, textOf, axisOf }} />
            )}
          </figure>
        )
      })}
    </div>
  )
}
