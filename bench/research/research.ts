import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'
import type { Address } from '../load/connection.ts'
import { startSluice } from '../machine/sluice.ts'
import { median, percentile } from '../results/samples.ts'
import { percent, renderGoals, renderTable, show } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'
import { openBaseline } from './baseline/baseline.ts'
import { type Corpus, openCorpus } from './corpus.ts'
import { type Question, readQuestions } from './questions.ts'
import { type Report, type Scores, scoreQuestions, summarize } from './score.ts'

const MODEL = 'deep-research-extractive'
const QUICK_QUESTIONS = 20
const CALLERS = 2
const QUESTION_TIMEOUT_MS = 120_000
/** Time limit of the first question, in milliseconds. The first question waits until all documents are indexed. */
const INDEX_TIMEOUT_MS = 600_000
const PROGRESS_INTERVAL = 25

export const RESEARCH: Section = {
  name: 'research',
  summary: 'answers of deep research over a fixed corpus, next to its prototype',
  title: '## Deep research',
  introduction: `Questions about public documents (the Debian handbook, guides of Git, Python howtos, the Jargon File:
\`bench/research/manifest.json\`), answered by the extractive writer through HTTP. **Gold**: share of answerable questions whose report cites a
document with the answer, a lower bound. **Facts**: mean share of the expected facts in the report. **Precision**: share of citations whose quote
is in the cited document, apart from white space. **Silent**: share of unanswerable questions whose report cites nothing. The
**held-out** questions were not read during development. The *prototype* (\`bench/research/baseline/\`) is the first version of the
algorithm, on the same questions and documents.`,
  async measure(run) {
    const { documents, scores, baseline, times } = await measureResearch(run)
    return [
      renderComparison(scores, baseline),
      renderScores(scores),
      `${documents} documents; a report took ${show(median(times), 0)} ms (median), ${show(percentile(times, 0.95), 0)} ms (p95), two at once.`,
    ]
  },
}

interface ResearchResults {
  readonly documents: number
  readonly scores: readonly Scores[]
  readonly baseline: readonly Scores[]
  readonly times: readonly number[]
}

async function measureResearch(run: Run): Promise<ResearchResults> {
  run.print('opening the corpus of the research questions')
  const corpus = await openCorpus()
  const questions = readQuestions().slice(0, run.options.isQuick ? QUICK_QUESTIONS : undefined)
  await using processes = run.processes()
  const models = [`{ id: ${MODEL}, pool: research, engine: { type: research } }`]
  const env = { RESEARCH_CORPUS: corpus.directory }
  const sluice = await startSluice(processes, { name: 'research', models, env })
  run.print(`indexing ${corpus.texts.size} documents`)
  await ask(sluice, 'What is this about?', INDEX_TIMEOUT_MS, run.signal)
  const { reports, times } = await askAll(run, sluice, questions)
  const scores = scoreQuestions(questions, reports, corpus.texts)
  for (const score of scores) if (score.question.set === 'open') run.print(lineOf(score))
  run.print('running the prototype')
  const baseline = scoreQuestions(questions, askBaseline(corpus, questions, run.signal), corpus.texts)
  return { documents: corpus.texts.size, scores: summarize(scores), baseline: summarize(baseline), times }
}

async function askAll(run: Run, sluice: Address, questions: readonly Question[]) {
  const reports = new Map<string, Report>()
  const times: number[] = []
  const waiting = [...questions]
  const caller = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      const startedAt = performance.now()
      reports.set(next.id, await ask(sluice, next.question, QUESTION_TIMEOUT_MS, run.signal))
      times.push(performance.now() - startedAt)
      if (times.length % PROGRESS_INTERVAL === 0) run.print(`${times.length} of ${questions.length} questions`)
    }
  }
  await Promise.all(Array.from({ length: CALLERS }, caller))
  return { reports, times }
}

function askBaseline({ directory, texts }: Corpus, questions: readonly Question[], signal: AbortSignal) {
  const contents = [...texts.keys()].map((name) => [name, readFileSync(join(directory, name), 'utf8')] as const)
  const baseline = openBaseline(new Map(contents))
  const reports = new Map<string, Report>()
  for (const { id, question } of questions) {
    signal.throwIfAborted()
    reports.set(id, baseline.answer(question))
  }
  baseline.close()
  return reports
}

const Citation = z.object({
  start_index: z.int(),
  end_index: z.int(),
  url: z.string(),
  title: z.string(),
  quote: z.string(),
})
const Message = z.object({ content: z.string(), annotations: z.array(z.object({ url_citation: Citation })) })
const Completion = z.object({ choices: z.tuple([z.object({ message: Message })]) })

async function ask({ url, key }: Address, question: string, timeoutMs: number, signal: AbortSignal): Promise<Report> {
  const body = { model: MODEL, messages: [{ role: 'user', content: question }] }
  for (;;) {
    const response = await fetch(new URL('/v1/deep-research', url), {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify(body),
      signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]),
    })
    const text = await response.text()
    if (response.ok) return reportOf(text)
    const retryAfter = Number(response.headers.get('retry-after'))
    if (response.status !== 503 || !(retryAfter > 0)) throw new Error(`${question}: ${response.status} ${text}`)
    await sleep(retryAfter * 1_000, undefined, { signal })
  }
}

function reportOf(text: string): Report {
  const { content, annotations } = Completion.parse(JSON.parse(text)).choices[0].message
  const citations = annotations.map(({ url_citation }) => url_citation)
  return { content, annotations: citations, abstained: citations.length === 0 }
}

function lineOf({ question, goldCited, facts, citations }: ReturnType<typeof scoreQuestions>[number]): string {
  if (question.kind === 'unanswerable') return `${question.id}: ${citations} citations, unanswerable`
  const documents = goldCited ? 'right document' : 'other documents'
  return `${question.id}: ${documents}, ${percent(facts, 0)} of the facts, ${citations} citations`
}

const COMPARED = [
  ['gold', 'goldCited'],
  ['facts', 'factsSaid'],
  ['precision', 'citationPrecision'],
  ['silent', 'silent'],
] as const

export function renderComparison(scores: readonly Scores[], baseline: readonly Scores[]): string {
  return renderGoals(
    ['all', 'open', 'held-out'].flatMap((group) =>
      COMPARED.map(([name, key]) => {
        const [own, base] = [scores, baseline].map((some) => some.find((each) => each.group === group)?.[key])
        const measured = own === undefined || base === undefined ? Number.NaN : own / base
        return { name: `${name}, ${group} (prototype ${percent(base)})`, measured, unit: '× prototype', min: 1 }
      }),
    ),
  )
}

function renderScores(scores: readonly Scores[]): string {
  const rows = scores.map(({ group, questions, ...shares }) => {
    const { goldCited, allFactsSaid, factsSaid, citationPrecision, abstained, silent } = shares
    return [
      ...[group, String(questions)],
      ...[goldCited, allFactsSaid, factsSaid, citationPrecision, abstained, silent].map((share) => percent(share)),
    ]
  })
  const head = ['questions', 'count', 'gold', 'all facts', 'facts', 'precision', 'abstained', 'silent']
  return renderTable(head, rows)
}
