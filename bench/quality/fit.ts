import { evidenceOf } from '#services/research/evidence/answerable.ts'
import { askedParts, asksForAbsent, scoredParts } from '#services/research/evidence/evidence.ts'
import { type CountedPassage, countPassages, rankPassages } from '#services/research/question/passages.ts'
import { parseQuestion, queryTermsIn, vocabularyOf, weightsOf } from '#services/research/question/question.ts'
import type { StepResult } from '#shared/kinds/composition.ts'
import { runToEnd } from '#shared/lib/yielding.ts'
import type { SearchBackend, Snapshot, TermCounts } from '#shared/search/search.ts'
import { MemoryComposition } from '../../test/support/research/composition.ts'
import { researched } from '../../test/support/research/run.ts'
import { fitRegression, logOddsOf, type Sample } from './research/regression.ts'
import { openSet } from './research/sets.ts'

/*
 * Fits the coefficients with which research decides whether the documents answer a question (`EVIDENCE_WEIGHTS` in
 * `services/research/evidence/answerable.ts`). Prints the coefficients that are fitted to all sets. For cross-validation, the answers of each set are
 * also predicted with coefficients that were fitted without this set and its reworded questions.
 *
 *     node bench/quality/fit.ts
 */

const SETS = ['quality', 'fresh', 'abstain', 'silence', 'long-quality', 'long-fresh'] as const
/** Set of an original question, by the second letter of the id of its reworded version: `lq002` is the reworded `q002` of the set `quality`. */
const ORIGINS: Readonly<Record<string, string>> = { q: 'quality', f: 'fresh', a: 'abstain', s: 'silence' }
const MARGINS = [0, 0.2, 0.4, 0.6, 0.8]

/** Records the pages and the term counts of one research run in memory. */
class Recording extends MemoryComposition {
  readonly snapshots: Snapshot[] = []
  counts: TermCounts | undefined

  override async step<T>(
    kind: string,
    input: unknown,
    run: (signal: AbortSignal) => Promise<StepResult<T>>,
  ): Promise<T> {
    const value = await super.step(kind, input, run)
    if (kind === 'read') this.snapshots.push(value as Snapshot)
    if (kind === 'weigh') this.counts = value as TermCounts
    return value
  }
}

async function quotesOf(text: string, corpus: SearchBackend): Promise<number[][]> {
  const recording = new Recording()
  await researched({ backends: [corpus] }, { question: text }, recording)
  const { snapshots, counts } = recording
  if (!counts) throw new Error(`The terms of a question were not counted: ${text}`)
  const question = runToEnd(parseQuestion({ question: text, context: [] }))
  const passages: CountedPassage[] = []
  for (const snapshot of snapshots) passages.push(...runToEnd(countPassages(snapshot, queryTermsIn(question))))
  const terms = [...vocabularyOf(question).keys()]
  const weights = weightsOf(terms, counts)
  const absent = new Set(terms.filter((_, at) => counts.holding[at] === 0))
  const read = runToEnd(rankPassages(question, passages, weights))
  const parts = runToEnd(scoredParts(question, runToEnd(askedParts(question, read, weights)), read, weights))
  return parts
    .filter((part) => !(question.language.isEnglish && asksForAbsent(part, absent)))
    .flatMap((part) => runToEnd(evidenceOf(question, part, read, weights, counts.passages)))
    .map(({ sum, count, share }) => [sum, count, share])
}

const samples: (Sample & { readonly set: string })[] = []
for (const set of SETS) {
  const { questions, corpus } = await openSet(set)
  for (const { id, question, answerable } of questions) {
    const group = set.startsWith('long-') ? (ORIGINS[id.charAt(1)] ?? set) : set
    samples.push({ set, group, isAnswerable: answerable, quotes: await quotesOf(question, corpus) })
  }
  await corpus.close()
}
const format = (values: readonly number[]) => values.map((value) => value.toFixed(2)).join(', ')
console.log(`sum, count, share, bias: ${format(fitRegression(samples))}`)
const predicted = new Map<Sample, number>()
for (const group of new Set(samples.map((sample) => sample.group))) {
  const coefficients = fitRegression(samples.filter((sample) => sample.group !== group))
  for (const sample of samples) if (sample.group === group) predicted.set(sample, logOddsOf(sample, coefficients))
}
for (const margin of MARGINS)
  for (const set of SETS) {
    const shares = [true, false].map((isAnswerable) => {
      const some = samples.filter((sample) => sample.set === set && sample.isAnswerable === isAnswerable)
      const right = some.filter((sample) => (predicted.get(sample) ?? 0) >= margin === isAnswerable)
      return `${right.length} of ${some.length}`
    })
    console.log(`margin ${margin}, ${set}: answered ${shares[0]}, silent ${shares[1]}`)
  }
