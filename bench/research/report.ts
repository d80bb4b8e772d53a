import { renderTable, show } from '../figures/markdown.ts'
import { median } from '../figures/stats.ts'
import { LIES } from './liar/lies.ts'
import type { ResearchResults } from './research.ts'
import type { Scores } from './score.ts'

/** The heading that the section of deep research begins with. */
export const RESEARCH_TITLE = '## Deep research'

/** What the section says before its figures. */
export const RESEARCH_INTRODUCTION = `Questions about documents that are not of this project (chapters of the Debian handbook, guides of Git, Python's what's new, howtos and
FAQ, the Jargon File: \`bench/research/manifest.json\`), answered by the extractive writer through HTTP. **Gold** is the share of answerable
questions whose report cites a document that holds the answer (of each group where several are needed); it is a lower bound, for another
document may answer too. **Facts** is the mean share of expected facts that the report says. **Precision** is the share of citations whose
quote stands, character for character but for white space, in the document that it names. **Silent** is the share of unanswerable questions
whose report cites nothing. The **held-out** questions were never looked at while the thresholds were set.

The *prototype* is the algorithm that the feature began as, made anew by its description (\`bench/research/baseline/\`) and asked the same
questions of the same documents in the same run: its figures are the floor.`

const HEAD = ['questions', 'how many', 'gold', 'all facts', 'facts', 'precision', 'abstained', 'silent']

/** The section's tables, in Markdown. */
export function renderResearch(results: ResearchResults): string[] {
  const { documents, scores, baseline, times } = results
  const rows = scores.map((each) => [
    each.group,
    String(each.questions),
    ...[each.goldCited, each.allFactsSaid, each.factsSaid, each.citationPrecision, each.abstained, each.silent].map(
      percent,
    ),
  ])
  const sorted = times.toSorted((a, b) => a - b)
  const p95 = sorted[Math.floor(sorted.length * 0.95)] ?? Number.NaN
  return [
    RESEARCH_TITLE,
    renderBeside(scores, baseline),
    renderTable(HEAD, rows),
    `${documents} documents; a report took ${show(median(times), 0)} ms (median), ${show(p95, 0)} ms (p95), two at once.`,
    '### A model that lies',
    LIAR_INTRODUCTION,
    renderLiar(results),
  ]
}

const FLOORS = [
  ['gold', 'goldCited'],
  ['facts', 'factsSaid'],
  ['precision', 'citationPrecision'],
  ['silent', 'silent'],
] as const

/** Each figure of all questions and of each set beside the prototype's. */
function renderBeside(scores: readonly Scores[], baseline: readonly Scores[]): string {
  const rows = ['all', 'open', 'held-out'].flatMap((group) => {
    const own = scores.find((each) => each.group === group)
    const floor = baseline.find((each) => each.group === group)
    return FLOORS.map(([name, key]) => {
      const [value, least] = [own?.[key], floor?.[key]]
      const ratio = value === undefined || least === undefined ? Number.NaN : value / least
      const verdict = ratio >= 1 ? 'reached' : '**missed**'
      const measured = `${show(ratio, 2)} ×`
      return [`${name}, ${group}`, percent(least), percent(value), '≥ 1 × prototype', measured, verdict]
    })
  })
  return renderTable(['what', 'prototype', 'Sluice', 'target', 'measured', ''], rows)
}

function percent(value: number | undefined): string {
  return value === undefined ? '–' : `${show(value * 100, 1)} %`
}

const LIAR_INTRODUCTION = `A scripted model writes the reports on every seventh question, and lies: it changes numbers, names and denials, says the
opposite in other words, invents sources and quote ids, and cites what another page says. Each third plan of it is no plan, each ninth note
never ends, and as a judge it says yes to everything. **Falsified** are the cited claims that are such lies: by what the model is known
to have told, not by the check that should have found them.`

/** What became of each kind of lie. */
function renderLiar({ liar, liarTimes, liarPrecision }: ResearchResults): string {
  const rows = LIES.map((lie) => [lie, String(liar.told.get(lie) ?? 0), String(liar.falsified.get(lie) ?? 0)])
  const falsified = [...liar.falsified.values()].reduce((sum, count) => sum + count, 0)
  const verdict = falsified === 0 ? 'reached' : '**missed**'
  const counts = `${liar.reports} reports, ${liar.byModel} of them by the model: ${liar.verbatim} claims in the words of a quote, ${liar.reworded} in other
words, ${falsified} falsified (target: none, ${verdict}); ${liar.quoted} quoted in place of a claim, ${liar.dropped} left out. Precision of the
citations ${percent(liarPrecision)}; ${show(median(liarTimes), 0)} ms (median) and ${show(liar.tokens / Math.max(1, liar.reports), 0)} tokens a report.`
  return `${renderTable(['lie', 'told', 'falsified claims cited'], rows)}\n\n${counts}`
}
