/**
 * Checks the evaluation set of deep research against its corpus, which it fetches first: does each document that is to
 * answer a question hold the facts, and does none answer an unanswerable one?
 *
 *     node bench/research/check.ts [--any-version] [--write-manifest]
 */
import { parseArgs } from 'node:util'
import { openCorpus, writeManifest } from './corpus.ts'
import { groupsOf, plain, type Question, readQuestions, saysFact } from './questions.ts'

type Texts = ReadonlyMap<string, string>

process.exitCode = await main()

async function main(): Promise<number> {
  try {
    const options = { 'any-version': { type: 'boolean' }, 'write-manifest': { type: 'boolean' } } as const
    const { values } = parseArgs({ options })
    const write = values['write-manifest'] ?? false
    const { directory, differences, texts } = await openCorpus({
      anyVersion: write || (values['any-version'] ?? false),
    })
    if (write) await writeManifest()
    else for (const difference of differences) print(`another corpus: ${difference}`)
    const plainTexts = new Map([...texts].map(([name, text]) => [name, plain(text)]))
    const questions = readQuestions()
    const problems = [...repeated(questions), ...questions.flatMap((question) => problemsOf(question, plainTexts))]
    for (const problem of problems) print(problem)
    print(`${texts.size} documents in ${directory}`)
    for (const line of countByKind(questions)) print(line)
    print(problems.length === 0 ? 'all questions hold' : `${problems.length} problems`)
    return problems.length === 0 ? 0 : 1
  } catch (error) {
    process.stderr.write(`check: ${(error as Error).message}\n`)
    return 1
  }
}

function repeated(questions: readonly Question[]): string[] {
  const seen = new Set<string>()
  return questions.flatMap(({ id, question }) => {
    const again = seen.has(id) || seen.has(question)
    seen.add(id).add(question)
    return again ? [`${id}: this id or question stands there twice`] : []
  })
}

function problemsOf(question: Question, texts: Texts): string[] {
  const missing = groupsOf(question)
    .flat()
    .filter((name) => !texts.has(name))
  if (missing.length > 0) return missing.map((name) => `${question.id}: there is no document ${name}`)
  if (question.kind === 'single') return problemsOfSingle(question, texts)
  return question.kind === 'multi' ? problemsOfMulti(question, texts) : problemsOfUnanswerable(question, texts)
}

function problemsOfSingle(question: Question & { kind: 'single' }, texts: Texts): string[] {
  return question.documents.flatMap((name) => {
    const absent = question.facts.filter((fact) => !saysFact(texts.get(name) ?? '', fact))
    return absent.map((fact) => `${question.id}: ${name} does not say ${fact}`)
  })
}

/** The groups together hold all facts, each document one at least, and no document is of two groups. */
function problemsOfMulti(question: Question & { kind: 'multi' }, texts: Texts): string[] {
  const names = question.documents.flat()
  const says = (name: string, fact: string) => saysFact(texts.get(name) ?? '', fact)
  const unsaid = question.facts.filter((fact) => !names.some((name) => says(name, fact)))
  const idle = names.filter((name) => !question.facts.some((fact) => says(name, fact)))
  return [
    ...unsaid.map((fact) => `${question.id}: no document says ${fact}`),
    ...idle.map((name) => `${question.id}: ${name} says none of the facts`),
    ...(new Set(names).size < names.length ? [`${question.id}: a document stands there twice`] : []),
  ]
}

function problemsOfUnanswerable(question: Question & { kind: 'unanswerable' }, texts: Texts): string[] {
  return [...texts].flatMap(([name, text]) => {
    const said = question.absent.filter((fact) => saysFact(text, fact))
    return said.map((fact) => `${question.id}: ${name} does say ${fact}`)
  })
}

function countByKind(questions: readonly Question[]): string[] {
  return [...Map.groupBy(questions, ({ kind }) => kind)].map(([kind, some]) => {
    const open = some.filter(({ set }) => set === 'open').length
    return `${kind}: ${some.length} questions, ${open} open and ${some.length - open} held out`
  })
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}
