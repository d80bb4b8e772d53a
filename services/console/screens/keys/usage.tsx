import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import type { z } from 'zod'
import type { UsageReport } from '#schemas/usage.ts'
import { fetchJson } from '#services/console/api/client.ts'
import { serviceNow } from '#services/console/api/clock.ts'
import { ErrorText, Plot, useAction } from '#services/console/parts/parts.tsx'
import { setQuery } from '#services/console/parts/router.ts'

const DAY_MS = 86_400_000
const DAYS = 30
type Report = z.infer<typeof UsageReport>

/** Formats US dollars. Amounts below a cent get two significant digits. */
export function usd(amount: number): string {
  if (amount === 0) return '$0'
  return amount < 0.01 ? `$${amount.toPrecision(2)}` : `$${amount.toFixed(2)}`
}

export function Usage({
  owner,
  id,
  name,
}: {
  readonly owner: 'key' | 'project'
  readonly id: string
  readonly name: string
}) {
  const report = useSignal<Report | undefined>(undefined)
  const { problem, run } = useAction()
  useEffect(() => {
    const from = dayOf(serviceNow() * 1_000 - (DAYS - 1) * DAY_MS)
    const query = new URLSearchParams({ from, to: dayOf(serviceNow() * 1_000), group_by: 'day', [owner]: id })
    void run(async () => {
      report.value = await fetchJson<Report>(`/v1/usage?${query}`)
    })
  }, [owner, id])
  return (
    <section class="card usage" aria-label={`Usage of ${name}`}>
      <div class="title">
        <h2>
          Usage of {name}: last {DAYS} days <span class="dim">(UTC)</span>
        </h2>
        <button type="button" class="small" onClick={() => setQuery({ usage: '' })}>
          Close
        </button>
      </div>
      <ErrorText text={problem.value} />
      {report.value && <Plots report={report.value} />}
    </section>
  )
}

function Plots({ report: { data, total } }: { readonly report: Report }) {
  const days = Array.from({ length: DAYS }, (_, nth) => dayOf(serviceNow() * 1_000 - (DAYS - 1 - nth) * DAY_MS))
  const by = new Map(data.map((sums) => [sums.group, sums]))
  const values = (pick: (sums: Report['data'][number]) => number) =>
    days.map((day) => {
      const sums = by.get(day)
      return sums ? pick(sums) : 0
    })
  const tokens = total.input_tokens + total.output_tokens
  const all = [
    {
      name: 'requests',
      text: total.calls.toLocaleString(),
      values: values(({ calls }) => calls),
      textOf: String,
      topMin: 1,
    },
    {
      ...{ name: 'tokens', text: tokens.toLocaleString(), textOf: (most: number) => most.toLocaleString(), topMin: 1 },
      values: values(({ input_tokens, output_tokens }) => input_tokens + output_tokens),
    },
    {
      name: 'cost',
      text: usd(total.cost_usd),
      values: values(({ cost_usd }) => cost_usd),
      textOf: (most: number) => (total.cost_usd > 0 ? usd(most) : '$0'),
      topMin: 0.0001,
    },
  ]
  return (
    <div class="grid">
      {all.map(({ name, text, values: line, textOf, topMin }) => (
        <figure key={name}>
          <figcaption>
            <span class="dim">{name}</span> <strong>{text}</strong>
          </figcaption>
          <Plot
            label={`${name} per day: ${text} in the last ${DAYS} days`}
            series={[{ name: 'running', values: line }]}
            {...{ samples: DAYS, textOf, topMin }}
          />
          <p class="dim span">
            <span>{days[0]}</span>
            <span>{days.at(-1)}</span>
          </p>
        </figure>
      ))}
    </div>
  )
}

function dayOf(ms: number): string {
  return new Date(ms).toISOString().slice(0, 10)
}
