import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { rename, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { parseArgs, promisify } from 'node:util'
import { openFolder, researched } from '../../test/support/research/run.ts'
import { type QualityScore, scoreReport } from './research/score.ts'

/*
 * Measures research without a model, over the documentation of Debian, PyPI and npm packages. A good report cites the right document
 * and states the fact in its first sentences. If no document answers the question, a good report has no statements.
 *
 *     node bench/quality/research.ts [--set quality|fresh|abstain] [--split dev|test] [--verbose]
 *
 * The documents of a set (1,500 to 2,000) are downloaded once into the cache. The authors of the sets `quality` and `fresh` had not read the
 * code. The set `abstain` has the documents of `fresh`. Half of its questions have no answer. Such a question asks for a property that no
 * document states, another version or product, or an unrelated fact. During development only the split `dev` of a set was inspected.
 */

interface Question {
  readonly id: string
  readonly question: string
  readonly language: string
  readonly gold: readonly string[]
  /** Each group is a list of alternative wordings of one fact. A report states the fact if it contains one wording. */
  readonly facts: readonly (readonly string[])[]
  readonly table: boolean
  readonly answerable: boolean
  readonly split: 'dev' | 'test'
}

const CACHE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice')
const FETCH_MS = 1_200_000

interface QuestionSet {
  readonly questions: string
  readonly script: string
  /** Directories in the cache. The numbers must be incremented when the list of packages changes. */
  readonly corpus: string
  readonly index: string
}

const SETS: Readonly<Record<string, QuestionSet>> = {
  quality: { questions: 'questions.json', script: 'corpus.sh', corpus: 'quality-corpus-1', index: 'quality-index-1' },
  fresh: { questions: 'fresh.json', script: 'fresh.sh', corpus: 'quality-fresh-1', index: 'quality-fresh-index-1' },
  abstain: { questions: 'abstain.json', script: 'fresh.sh', corpus: 'quality-fresh-1', index: 'quality-fresh-index-1' },
}

const { values } = parseArgs({
  options: { set: { type: 'string', default: 'quality' }, split: { type: 'string' }, verbose: { type: 'boolean' } },
})
const set = SETS[values.set]
if (!set) throw new Error(`--set must be one of ${Object.keys(SETS).join(', ')}; got ${values.set}`)
const CORPUS = join(CACHE, set.corpus)
const file = new URL(`./research/${set.questions}`, import.meta.url)
const questions = (JSON.parse(readFileSync(file, 'utf8')) as Question[]).filter(
  ({ split }) => values.split === undefined || split === values.split,
)
if (!(await stat(CORPUS).catch(() => undefined))) {
  console.log('fetching the corpus')
  const script = join(import.meta.dirname, 'research', set.script)
  await promisify(execFile)('bash', [script, `${CORPUS}.part`], { timeout: FETCH_MS, maxBuffer: 16 * 1024 * 1024 })
  await rename(`${CORPUS}.part`, CORPUS)
}
const startedAt = performance.now()
const corpus = await openFolder(CORPUS, join(CACHE, set.index))
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
