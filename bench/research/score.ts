import { containsFact, groupsOf, plain, type Question } from './questions.ts'

export interface Report {
  readonly content: string
  readonly annotations: readonly Annotation[]
  readonly abstained: boolean
}

/** A citation. Indexes count UTF-16 code units of the content. */
export interface Annotation {
  readonly start_index: number
  readonly end_index: number
  /** A URL whose last segment is the name of the document. */
  readonly url: string
  readonly title: string
  readonly quote: string
}

export interface QuestionScore {
  readonly question: Question
  readonly reported: boolean
  readonly goldCited: boolean
  readonly facts: number
  readonly citations: number
  readonly exactCitations: number
  readonly abstained: boolean
}

/**
 * Scores of a group of questions. The shares from `goldCited` to `abstained` count only answerable questions. A share is undefined if it
 * counts no question.
 */
export interface Scores {
  /** Name of the group of questions: `all`, a set, a kind of question, or a set and a kind, such as `open single`. */
  readonly group: string
  readonly questions: number
  readonly unreported: number
  readonly goldCited: number | undefined
  readonly factsSaid: number | undefined
  readonly allFactsSaid: number | undefined
  readonly abstained: number | undefined
  readonly citationPrecision: number | undefined
  /** Share of the unanswerable questions whose report cites nothing. */
  readonly silent: number | undefined
}

/**
 * @param reports Reports by question. A question without a report counts as failed, even if the expected report cites nothing.
 * @param texts Documents by name.
 * @throws Error if a report belongs to none of the questions
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
  const isExact = ({ url, quote }: Annotation) => {
    const name = documentOf(url)
    const text = tight.get(name) ?? tighten(texts.get(name) ?? '')
    tight.set(name, text)
    const wanted = tighten(quote)
    return wanted !== '' && text.includes(wanted)
  }
  return questions.map((question) => scoreQuestion(question, reports.get(question.id), isExact))
}

export function summarize(scores: readonly QuestionScore[]): Scores[] {
  const groups = new Map<string, QuestionScore[]>([['all', [...scores]]])
  for (const score of scores) {
    const { set, kind } = score.question
    for (const name of [set, kind, `${set} ${kind}`]) groups.set(name, [...(groups.get(name) ?? []), score])
  }
  return [...groups].map(([group, some]) => sumUp(group, some))
}

export function documentOf(url: string): string {
  const last =
    url
      .replace(/[?#].*$/s, '')
      .split('/')
      .at(-1) ?? ''
  try {
    return decodeURIComponent(last)
  } catch {
    // decodeURIComponent fails for a percent sign that begins no valid escape, as in `100%`. The segment is then used unchanged.
    return last
  }
}

function scoreQuestion(
  question: Question,
  report: Report | undefined,
  isExact: (annotation: Annotation) => boolean,
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
    facts: share(facts, (fact) => containsFact(content, fact)) ?? 0,
    citations: annotations.length,
    exactCitations: annotations.filter(isExact).length,
    abstained: report?.abstained ?? false,
  }
}

function shown(content: string): string {
  return content.replace(/\\([!-/:-@[-`{-~])/g, '$1')
}

/**
 * Removes white space and the mark `¶`, so that texts can be compared. HTML readers place white space differently, and Sphinx puts the mark
 * after headings.
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
