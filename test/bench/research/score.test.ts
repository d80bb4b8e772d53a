import { expect, test } from 'vitest'
import type { Question } from '../../../bench/research/questions.ts'
import { documentOf, type Report, type Scores, scoreQuestions, summarize } from '../../../bench/research/score.ts'
import { textOf } from '../../../bench/research/text.ts'

const TEXTS = new Map([
  [
    'rivers.html',
    textOf('rivers.html', '<title>Rivers</title><p>The <b>Elbe</b> is 1,094&nbsp;km long.</p><li>Ends</li>'),
  ],
  ['lakes.txt', 'The lake\n is  called Müritz.'],
])
const single: Question = {
  id: 'water-01',
  set: 'open',
  kind: 'single',
  question: 'How long is the Elbe?',
  documents: ['rivers.html'],
  facts: ['Elbe', '/1[,.]?094/'],
}
const multi: Question = {
  ...single,
  id: 'water-02',
  set: 'held-out',
  kind: 'multi',
  documents: [['rivers.html'], ['lakes.txt']],
  facts: ['Elbe', 'Müritz'],
}
const unanswerable: Question = {
  id: 'water-03',
  set: 'open',
  kind: 'unanswerable',
  question: 'How long is the Rhine?',
  absent: ['Rhine'],
}
const QUESTIONS = [single, multi, unanswerable]
const SILENCE: Report = { content: 'The sources do not say.', annotations: [], abstained: true }

test('a research report with all expected facts and exact quotes of the expected documents scores 1', () => {
  const scores = score({
    'water-01': report('The Elbe has 1094 km.', ['rivers.html', 'The Elbe is 1,094 km long.']),
    'water-02': report('Elbe, Müritz', ['rivers.html', 'Elbe'], ['lakes.txt', 'The lake is called Müritz.']),
    'water-03': SILENCE,
  })
  expect(scores.all).toEqual({
    group: 'all',
    questions: 3,
    unreported: 0,
    goldCited: 1,
    factsSaid: 1,
    allFactsSaid: 1,
    citationPrecision: 1,
    abstained: 0,
    silent: 1,
  })
})

test('a question counts as cited only if the report cites a document of each required group', () => {
  const scores = score({ 'water-02': report('Müritz', ['lakes.txt', 'Müritz'], ['lakes.txt', 'The lake']) })
  expect(scores.multi).toMatchObject({ goldCited: 0, factsSaid: 0.5, allFactsSaid: 0, citationPrecision: 1 })
})

test('a quote is inexact if it is empty, cites no document, or is not in the cited document', () => {
  const quotes = ['1,094 km long. Ends', 'The Elbe was 1,094 km long.', ' ', 'The lake is called Müritz.']
  const annotations = quotes.map((quote): [string, string] => ['rivers.html', quote])
  const scores = score({ 'water-01': report('Elbe', ...annotations, ['ponds.txt', 'Elbe']) })
  expect(scores.all).toMatchObject({ citationPrecision: 0.2 })
})

test('a report without citations counts as abstained if the question is unanswerable, and as silent otherwise', () => {
  const scores = score({ 'water-01': SILENCE, 'water-03': report('It has 1,230 km.', ['rivers.html', 'Elbe']) })
  expect(scores.open).toMatchObject({ questions: 2, goldCited: 0, abstained: 1, silent: 0 })
  expect(scores['open unanswerable']).toMatchObject({ goldCited: undefined, factsSaid: undefined, silent: 0 })
})

test('a question without a report counts as unreported, not as abstained', () => {
  const scores = score({})
  expect(scores.all).toMatchObject({
    unreported: 3,
    goldCited: 0,
    abstained: 0,
    silent: 0,
    citationPrecision: undefined,
  })
  expect(() => score({ 'water-99': SILENCE })).toThrow('water-99')
})

test('a plain fact matches a whole word only, and a regular expression matches any part of the report', () => {
  const facts = (content: string) => score({ 'water-01': report(content) }).single?.factsSaid
  expect(facts('the ELBE')).toBe(0.5)
  expect(facts('the Elbes')).toBe(0)
  expect(facts('about 1.0945')).toBe(0.5)
})

test('a fact matches a report in which a Markdown backslash escapes the punctuation of the fact', () => {
  const facts = (content: string) => score({ 'water-01': report(content) }).single?.factsSaid
  expect(facts('Elbe: 1\\.094')).toBe(1)
  expect(facts('Elbe: 1\\a094')).toBe(0.5)
})

test('a document is identified by the file name at the end of its URL', () => {
  expect(documentOf('http://127.0.0.1:8080/documents/python-whatsnew-3.4.html?raw=1#new')).toBe(
    'python-whatsnew-3.4.html',
  )
  expect(documentOf('file:///corpus/a%20b.txt')).toBe('a b.txt')
  expect(documentOf('100%.txt')).toBe('100%.txt')
})

test('scoring ignores the tags, styles, scripts and comments of an HTML page', () => {
  const page =
    '<style>p{}</style><h1>A &amp; B</h1><script>1<2</script><p>x<sub>2</sub>&#8211;y</p><!-- no --><td>1</td><td>2</td>'
  expect(textOf('page.html', page)).toBe('A & B x2–y 1 2')
})

function score(reports: Record<string, Report>): Record<string, Scores> {
  const scores = summarize(scoreQuestions(QUESTIONS, new Map(Object.entries(reports)), TEXTS))
  return Object.fromEntries(scores.map((each) => [each.group, each]))
}

function report(content: string, ...cited: (readonly [name: string, quote: string])[]): Report {
  const annotations = cited.map(([name, quote]) => {
    return { start_index: 0, end_index: content.length, url: `http://127.0.0.1/d/${name}`, title: name, quote }
  })
  return { content, annotations, abstained: false }
}
