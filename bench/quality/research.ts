import { parseArgs } from 'node:util'
import { researched } from '../../test/support/research/run.ts'
import { type QualityScore, scoreReport } from './research/score.ts'
import { openSet } from './research/sets.ts'

/*
 * Measures research without a model, over the documentation of Debian, PyPI and npm packages. A good report cites the right document
 * and states the fact in its first sentences. If no document answers the question, a good report has no statements.
 *
 *     node bench/quality/research.ts [--set quality|fresh|abstain|silence|outside|long-quality|long-fresh] [--split dev|test] [--verbose]
 *
 * There are two corpora of 1,500 to 2,000 documents, also named `quality` and `fresh`. Each is downloaded once into the cache. The list of
 * the sets states what each author of questions had read. An author who knows the code may ask what the code answers well.
 *
 *     `quality` (corpus `quality`): the author of the questions had not read the code.
 *     `fresh` (corpus `fresh`): the author of the questions had not read the code.
 *     `abstain` (corpus `fresh`): half of the questions have no answer.
 *     `silence` (corpus `quality`): half of the questions have no answer. The author had read the code, but no result.
 *     `outside` (corpus `fresh`): the author had read neither the code nor a result.
 *     `long-quality` (corpus `quality`): questions of `quality` and `silence`, with a description of the situation of the person who asks.
 *     `long-fresh` (corpus `fresh`): questions of `fresh` and `abstain`, reworded in the same way.
 *
 * A question without an answer asks for a property that no document states, another version or product, or an unrelated fact. During development, only
 * questions of the split `dev` were inspected.
 */

const { values } = parseArgs({
  options: { set: { type: 'string', default: 'quality' }, split: { type: 'string' }, verbose: { type: 'boolean' } },
})
const startedAt = performance.now()
const { questions: all, corpus } = await openSet(values.set)
const questions = all.filter(({ split }) => values.split === undefined || split === values.split)
console.log(`indexed in ${Math.round((performance.now() - startedAt) / 1_000)} s`)
const scores: QualityScore[] = []
for (const { id, question, gold, facts, answerable } of questions) {
  const asked = { id, question, documents: answerable ? [gold] : [], facts: facts.map(patternOf) }
  const askedAt = performance.now()
  const run = await researched({ backends: [corpus] }, { question })
  const score = scoreReport(asked, run, performance.now() - askedAt)
  scores.push(score)
  if (values.verbose) console.log(`\n${id} ${JSON.stringify({ ...score, question })}\n${run.report}`)
}
await corpus.close()
for (const split of ['dev', 'test'] as const) {
  const some = scores.filter(({ question }) => questions.find(({ id }) => id === question.id)?.split === split)
  if (some.length > 0) print(split, some)
}

function print(name: string, all: readonly QualityScore[]): void {
  const answerable = all.filter(({ question }) => question.documents.length > 0)
  const others = all.filter(({ question }) => question.documents.length === 0)
  const share = (some: readonly QualityScore[], holds: (score: QualityScore) => boolean) =>
    `${((100 * some.filter(holds).length) / Math.max(1, some.length)).toFixed(1)} %`
  console.log(`${name}: ${answerable.length} answerable questions, ${others.length} that no document answers`)
  console.log(`  gold document cited             ${share(answerable, ({ isGoldCited }) => isGoldCited)}`)
  console.log(`  a fact in the first sentence    ${share(answerable, ({ inFirst }) => inFirst)}`)
  console.log(`  a fact in the first three       ${share(answerable, ({ someFirst }) => someFirst)}`)
  console.log(`  all facts in the first three    ${share(answerable, ({ allFirst }) => allFirst)}`)
  console.log(`  all facts in the report         ${share(answerable, ({ hasAllFacts }) => hasAllFacts)}`)
  console.log(`  silent if no document answers   ${share(others, ({ citations }) => citations === 0)}`)
  console.log(`  a quote contained in another    ${share(all, ({ contained }) => contained > 0)}`)
  console.log(
    `  citations, characters (median)  ${medianOf(answerable, ({ citations }) => citations)}, ${medianOf(answerable, ({ chars }) => chars)}`,
  )
  console.log(`  milliseconds (median)           ${Math.round(medianOf(all, ({ milliseconds }) => milliseconds))}`)
}

function medianOf(some: readonly QualityScore[], numberOf: (score: QualityScore) => number): number {
  return some.map(numberOf).toSorted((a, b) => a - b)[some.length >> 1] ?? Number.NaN
}

/** Returns a pattern that matches any of the wordings. A wording in ASCII matches only as whole words. */
function patternOf(wordings: readonly string[]): string {
  const each = wordings.map((wording) => {
    const literal = wording.replace(/[.*+?^${}()|[\]\\/]/g, '\\$&')
    const isLatin = /^[\x20-\x7e]+$/.test(wording)
    const before = isLatin && /^\w/.test(wording) ? '(?<![\\p{L}\\p{N}_])' : ''
    const after = isLatin && /\w$/.test(wording) ? '(?![\\p{L}\\p{N}_])' : ''
    return before + literal + after
  })
  return `/${each.join('|')}/`
}
