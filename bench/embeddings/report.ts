import { renderTable, show } from '../figures/markdown.ts'
import { median } from '../figures/stats.ts'
import {
  EMBED_CALLERS,
  EMBED_TARGETS,
  type EmbedResults,
  type EmbedSample,
  type EmbedTarget,
  UPSTREAMS,
  type UpstreamName,
} from './embeddings.ts'

/** The heading that the section of embeddings begins with. */
export const EMBEDDINGS_TITLE = '## Embeddings'

/** What the section says before its figures. */
export const EMBEDDINGS_INTRODUCTION = `Callers of a single text each, in closed loops, on connections they keep; through Sluice with its defaults, and straight to
the same upstream. The upstream computes one call after another, as on one GPU, for so long a call and so long a text; the
time is waited, not computed, so that the cores are free for everybody else. Every text is another one. Every ratio is with the
direct calls of the same round; figures are medians over the rounds.

Sluice gains where a call has a cost of its own, because texts of many callers share calls. Where it has none, there is nothing
to gain, and what remains is what Sluice itself costs: little beside an upstream that takes 2 ms for a text, and most of all
beside one that takes no time at all, which no model does; there the cores of this machine are the limit, not the waiting.`

/** What is asked of a kind of upstream, with 64 callers. */
const GOALS: readonly { upstream: UpstreamName; goal: string; least: number }[] = [
  { upstream: 'fixed', goal: '> 1 × direct', least: 1 },
  { upstream: 'per-text', goal: '≥ 0.9 × direct', least: 0.9 },
]

const TITLES: Record<EmbedTarget, string> = {
  direct: 'nothing (direct)',
  embedded: 'Sluice, one process',
  kafka: 'Sluice, Kafka',
}

/** The section's tables, in Markdown. */
export function renderEmbeddings({ samples }: EmbedResults): string[] {
  const rows = UPSTREAMS.flatMap(({ model, callMs, textMs }) =>
    EMBED_CALLERS.flatMap((callers) =>
      EMBED_TARGETS.map((target) => {
        const of = samplesOf(samples, target, model, callers)
        const one = (figure: (sample: EmbedSample) => number) => median(of.map(figure))
        return [
          `${callMs} ms + ${textMs} ms a text`,
          ...[
            String(callers),
            TITLES[target],
            show(one(perSecondOf), 0),
            show(ratioOf(samples, target, model, callers), 2),
          ],
          ...[
            show(
              one((sample) => sample.p50),
              2,
            ),
            show(
              one((sample) => sample.p99),
              2,
            ),
          ],
          ...[
            show(
              one((sample) => sample.batch),
              1,
            ),
            show(
              one((sample) => sample.cpu),
              3,
            ),
          ],
        ]
      }),
    ),
  )
  return [EMBEDDINGS_TITLE, renderGoals(samples), renderTable(HEAD, rows)]
}

const HEAD = [
  ...['upstream', 'callers', 'through', 'embeddings/s', '× direct', 'p50 ms', 'p99 ms', 'texts a call'],
  'CPU ms/embedding',
]

/** What batching is to reach (docs/internals/benchmarks.md, Embeddings). */
function renderGoals(samples: readonly EmbedSample[]): string {
  const rows = GOALS.flatMap(({ upstream, goal, least }) =>
    (['embedded', 'kafka'] as const).map((target) => {
      const value = ratioOf(samples, target, upstream, 64)
      const verdict = Number.isNaN(value) ? 'not measured' : value >= least ? 'reached' : '**missed**'
      const has = upstream === 'fixed' ? 'a cost per call' : 'none'
      return [`embeddings/s, ${TITLES[target]}, 64 callers, upstream with ${has}`, goal, `${show(value, 2)} ×`, verdict]
    }),
  )
  return renderTable(['what', 'target', 'measured', ''], rows)
}

const perSecondOf = ({ perSecond }: EmbedSample) => perSecond

/** Median over the rounds of the comparison with the direct calls of the same round. NaN when it was not measured. */
function ratioOf(
  samples: readonly EmbedSample[],
  target: EmbedTarget,
  upstream: UpstreamName,
  callers: number,
): number {
  const bases = new Map(samplesOf(samples, 'direct', upstream, callers).map((one) => [one.round, one.perSecond]))
  const of = samplesOf(samples, target, upstream, callers)
  return median(of.map(({ round, perSecond }) => perSecond / (bases.get(round) ?? Number.NaN)))
}

function samplesOf(
  samples: readonly EmbedSample[],
  target: EmbedTarget,
  upstream: UpstreamName,
  callers: number,
): EmbedSample[] {
  return samples.filter((one) => one.target === target && one.upstream === upstream && one.callers === callers)
}
