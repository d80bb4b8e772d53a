import { groupsOf, plain, type Question, saysFact } from './questions.ts'

/*
 * What is counted of the reports that deep research gives on the questions. Pure: whoever runs the questions reads the
 * corpus and hands over both.
 */

/** What a report is judged by, in the form of an answer of the API. */
export interface Report {
  readonly content: string
  readonly annotations: readonly Annotation[]
  /** Whether it says that the sources do not answer the question. */
  readonly abstained: boolean
}

/** A citation of a report; indexes count UTF-16 code units of the content. */
export interface Annotation {
  readonly start_index: number
  readonly end_index: number
  /** Ends with the document's name. */
  readonly url: string
  readonly title: string
  /** What the document is said to say. */
  readonly quote: string
}

/** How one question went. */
export interface QuestionScore {
  readonly question: Question
  /** Whether there is a report at all. */
  readonly reported: boolean
  /** Whether a document that answers the question is cited, of each group where there are several. */
  readonly goldCited: boolean
  /** The share of the facts that the report says, 0 to 1; 0 where there are none. */
  readonly facts: number
  readonly citations: number
  /** Of the citations, those whose quote stands in the document that they name. */
  readonly exactCitations: number
  readonly abstained: boolean
}

/** How the questions of a group went; a share is undefined where there is nothing to take it of. */
export interface Scores {
  /** `all`, a set, a kind, or both, such as `open single`. */
  readonly group: string
  readonly questions: number
  readonly unreported: number
  /** Of the answerable questions: with a document of each group cited. */
  readonly goldCited: number | undefined
  /** Of the answerable questions: the mean share of the facts said. */
  readonly factsSaid: number | undefined
  /** Of the answerable questions: with all facts said. */
  readonly allFactsSaid: number | undefined
  /** Of all citations: those that quote their document exactly. */
  readonly citationPrecision: number | undefined
  /** Of the answerable questions: where the report abstained. */
  readonly abstained: number | undefined
  /** Of the unanswerable questions: with a report that cites nothing. */
  readonly silent: number | undefined
}

/**
 * Scores each question by its report.
 *
 * @param reports By the question's id; a question without a report counts as a failure of it, also for silence
 * @param texts The text of each document by its name
 * @throws Error on a report of a question that is not there
 */
export function scoreQuestions(
  questions: readonly Question[],
  reports: ReadonlyMap<string, Report>,
  texts: ReadonlyMap<string, string>,
): QuestionScore[] {
  const ids = new Set(questions.map(({ id }) => id))
  const unknown = [...reports.keys()].find((id) => !ids.has(id))
  if (unknown !== undefined) throw new Error(`there is a report on ${unknown}, but no such question`)
  const tight = new Map<string, string>()
  const quotes = ({ url, quote }: Annotation) => {
    const name = documentOf(url)
    const text = tight.get(name) ?? tighten(texts.get(name) ?? '')
    tight.set(name, text)
    const wanted = tighten(quote)
    return wanted !== '' && text.includes(wanted)
  }
  return questions.map((question) => scoreQuestion(question, reports.get(question.id), quotes))
}

/** Sums up: all questions, each set, each kind, and each kind of each set. */
export function summarize(scores: readonly QuestionScore[]): Scores[] {
  const groups = new Map<string, QuestionScore[]>([['all', [...scores]]])
  for (const score of scores) {
    const { set, kind } = score.question
    for (const name of [set, kind, `${set} ${kind}`]) groups.set(name, [...(groups.get(name) ?? []), score])
  }
  return [...groups].map(([group, some]) => sumUp(group, some))
}

/** The document's name: the last part of the address's path. */
export function documentOf(url: string): string {
  const last =
    url
      .replace(/[?#].*$/s, '')
      .split('/')
      .at(-1) ?? ''
  try {
    return decodeURIComponent(last)
  } catch {
    // A per cent sign that escapes nothing stands for itself.
    return last
  }
}

function scoreQuestion(
  question: Question,
  report: Report | undefined,
  quotes: (annotation: Annotation) => boolean,
): QuestionScore {
  const annotations = report?.annotations ?? []
  const cited = new Set(annotations.map(({ url }) => documentOf(url)))
  const groups = groupsOf(question)
  const facts = question.kind === 'unanswerable' ? [] : question.facts
  const content = plain(shown(report?.content ?? ''))
  return {
    question,
    reported: report !== undefined,
    goldCited: groups.length > 0 && groups.every((names) => names.some((name) => cited.has(name))),
    facts: share(facts, (fact) => saysFact(content, fact)) ?? 0,
    citations: annotations.length,
    exactCitations: annotations.filter(quotes).length,
    abstained: report?.abstained ?? false,
  }
}

/** Markdown as people see it, as far as facts go: without the backslashes that escape (CommonMark, Backslash escapes). */
function shown(content: string): string {
  return content.replace(/\\([!-/:-@[-`{-~])/g, '$1')
}

/**
 * The text without white space, and without the mark that Sphinx puts behind headings: where tags part words, one reader
 * puts a space and another one puts none, and neither is wrong.
 */
function tighten(text: string): string {
  return text.replace(/[\s¶]+/g, '')
}

function sumUp(group: string, scores: readonly QuestionScore[]): Scores {
  const answerable = scores.filter(({ question }) => question.kind !== 'unanswerable')
  const unanswerable = scores.filter(({ question }) => question.kind === 'unanswerable')
  const sum = (some: readonly QuestionScore[], key: 'facts' | 'citations' | 'exactCitations') => {
    return some.reduce((total, score) => total + score[key], 0)
  }
  const citations = sum(scores, 'citations')
  return {
    group,
    questions: scores.length,
    unreported: scores.filter(({ reported }) => !reported).length,
    goldCited: share(answerable, ({ goldCited }) => goldCited),
    factsSaid: answerable.length > 0 ? sum(answerable, 'facts') / answerable.length : undefined,
    allFactsSaid: share(answerable, ({ facts }) => facts === 1),
    citationPrecision: citations > 0 ? sum(scores, 'exactCitations') / citations : undefined,
    abstained: share(answerable, ({ abstained }) => abstained),
    silent: share(unanswerable, (score) => score.reported && score.citations === 0),
  }
}

function share<T>(items: readonly T[], holds: (item: T) => boolean): number | undefined {
  return items.length > 0 ? items.filter(holds).length / items.length : undefined
}
