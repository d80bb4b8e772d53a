import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import { sluice, urlOf } from '../calls/targets.ts'
import { Processes } from '../machine/processes.ts'
import { openBaseline } from './baseline/baseline.ts'
import { type Corpus, openCorpus } from './corpus.ts'
import { startLyingModel } from './liar/model.ts'
import { type LiarScores, scoreLiar, type WrittenReport } from './liar/score.ts'
import { type Question, readQuestions } from './questions.ts'
import { type Report, type Scores, scoreQuestions, summarize } from './score.ts'

/** What a run found out about research. */
export interface ResearchResults {
  readonly documents: number
  readonly scores: readonly Scores[]
  /** The same of the prototype (baseline/baseline.ts), on the same questions. */
  readonly baseline: readonly Scores[]
  /** Milliseconds from a question to its report, for each. */
  readonly times: readonly number[]
  /** Reports on some of the questions that a model wrote which lies. */
  readonly liar: LiarScores
  /** The times, and the citations' precision, of these reports. */
  readonly liarTimes: readonly number[]
  readonly liarPrecision: number | undefined
}

/** What is asked, and who hears of it. */
export interface ResearchOptions {
  /** Questions at most. */
  readonly questions: number
  readonly print: (text: string) => void
  readonly signal: AbortSignal
}

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const MODEL = 'deep-research-extractive'
const LIAR_MODEL = 'deep-research-liar'
/** One of so many questions is also asked of the model that lies. */
const LIAR_EACH = 7
/** Questions at once: as many as the cores of a small machine. */
const CALLERS = 2
const QUESTION_MS = 120_000
/** Documents are indexed before the first question is answered. */
const READY_MS = 600_000
const PROGRESS_EACH = 25

const Completion = z.object({
  usage: z.object({ total_tokens: z.int() }),
  research: z.object({ writer: z.string(), quoted: z.int(), dropped: z.int() }),
  choices: z.tuple([
    z.object({
      message: z.object({
        content: z.string(),
        annotations: z.array(
          z.object({
            url_citation: z.object({
              start_index: z.int(),
              end_index: z.int(),
              url: z.string(),
              title: z.string(),
              quote: z.string(),
            }),
          }),
        ),
      }),
    }),
  ]),
})

/** Asks the questions of questions.json of Sluice over the fixed corpus, and judges the reports. @throws Error when a call fails */
export async function measureResearch(options: ResearchOptions, dir: string): Promise<ResearchResults> {
  const { print, signal } = options
  print('opening the corpus of the research questions')
  const corpus = await openCorpus({ anyVersion: false })
  const questions = readQuestions().slice(0, options.questions)
  await using processes = new Processes(dir, undefined)
  await using liar = await startLyingModel()
  const url = await start(processes, corpus.directory, liar.url)
  print(`indexing ${corpus.texts.size} documents`)
  await ask(url, MODEL, 'What is this about?', READY_MS, signal)
  const { reports, times } = await askAll(url, MODEL, questions, options)
  const scores = scoreQuestions(questions, reports, corpus.texts)
  for (const score of scores) if (isShown(score.question)) print(missOf(score))
  print('asking the prototype')
  const baseline = summarize(scoreQuestions(questions, askBaseline(corpus, questions, signal), corpus.texts))
  const found = { documents: corpus.texts.size, scores: summarize(scores), baseline, times }
  print('having a model write that lies')
  const some = questions.filter((_, at) => at % LIAR_EACH === 0)
  const written = await askAll(url, LIAR_MODEL, some, options)
  const [all] = summarize(scoreQuestions(some, written.reports, corpus.texts))
  const liarScores = scoreLiar([...written.reports.values()], liar.told)
  const open = some.filter(isShown).flatMap(({ id }) => written.reports.get(id) ?? [])
  for (const claim of scoreLiar(open, liar.told).falsifiedClaims) print(`falsified: ${claim}`)
  return { ...found, liar: liarScores, liarTimes: written.times, liarPrecision: all?.citationPrecision }
}

/** Asks the questions, some at once. */
async function askAll(url: URL, model: string, questions: readonly Question[], { print, signal }: ResearchOptions) {
  const reports = new Map<string, WrittenReport>()
  const times: number[] = []
  const waiting = [...questions]
  const work = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      const startedAt = performance.now()
      reports.set(next.id, await ask(url, model, next.question, QUESTION_MS, signal))
      times.push(performance.now() - startedAt)
      if (times.length % PROGRESS_EACH === 0) print(`${times.length} of ${questions.length} questions`)
    }
  }
  await Promise.all(Array.from({ length: CALLERS }, work))
  return { reports, times }
}

function askBaseline({ directory, texts }: Corpus, questions: readonly Question[], signal: AbortSignal) {
  const contents = [...texts.keys()].map((name): [string, string] => [
    name,
    readFileSync(join(directory, name), 'utf8'),
  ])
  const baseline = openBaseline(new Map(contents))
  const reports = new Map<string, Report>()
  for (const { id, question } of questions) {
    signal.throwIfAborted()
    reports.set(id, baseline.answer(question))
  }
  baseline.close()
  return reports
}

async function start(processes: Processes, corpus: string, liar: string): Promise<URL> {
  const modelsFile = join(processes.dir, 'research-models.yaml')
  const models = [
    `{ id: ${MODEL}, pool: research, engine: { type: research } }`,
    `{ id: liar, engine: { type: openai, base_url: "${liar}/v1" } }`,
    `{ id: ${LIAR_MODEL}, pool: research, engine: { type: research, writer: liar } }`,
  ]
  writeFileSync(modelsFile, `models:\n${models.map((model) => `  - ${model}\n`).join('')}`)
  const dataDir = join(processes.dir, 'research')
  const env = { PORT: '0', DATA_DIR: dataDir, MODELS_FILE: modelsFile, SLUICE_API_KEY: KEY, RESEARCH_CORPUS: corpus }
  return urlOf(await processes.node(sluice('research', [], env)))
}

async function ask(
  url: URL,
  model: string,
  question: string,
  withinMs: number,
  signal: AbortSignal,
): Promise<WrittenReport> {
  const body = { model, messages: [{ role: 'user', content: question }] }
  for (;;) {
    const response = await fetch(new URL('/v1/deep-research', url), {
      method: 'POST',
      headers: { authorization: `Bearer ${KEY}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
      signal: AbortSignal.any([signal, AbortSignal.timeout(withinMs)]),
    })
    const text = await response.text()
    if (response.ok) return reportOf(text)
    const retryAfter = Number(response.headers.get('retry-after'))
    if (response.status !== 503 || !(retryAfter > 0)) throw new Error(`${question}: ${response.status} ${text}`)
    await sleep(retryAfter * 1_000, undefined, { signal })
  }
}

function reportOf(text: string): WrittenReport {
  const { choices, usage, research } = Completion.parse(JSON.parse(text))
  const { content, annotations } = choices[0].message
  const cited = annotations.map(({ url_citation }) => url_citation)
  return { content, annotations: cited, abstained: cited.length === 0, ...research, tokens: usage.total_tokens }
}

/** Held-out questions are never looked at. */
function isShown({ set }: Question): boolean {
  return set === 'open'
}

function missOf({ question, goldCited, facts, citations }: ReturnType<typeof scoreQuestions>[number]): string {
  if (question.kind === 'unanswerable')
    return `${question.id}: ${citations === 0 ? 'silent' : `${citations} citations`}`
  return `${question.id}: ${goldCited ? 'right document' : 'other documents'}, ${Math.round(facts * 100)} % of the facts, ${citations} citations`
}
