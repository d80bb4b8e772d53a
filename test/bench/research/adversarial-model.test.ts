import { expect, test } from 'vitest'
import { type Lie, lieOf } from '../../../bench/research/liar/lies.ts'
import { startLyingModel } from '../../../bench/research/liar/model.ts'
import { scoreLiar, type WrittenReport } from '../../../bench/research/liar/score.ts'

const QUOTE = { id: 'q1', text: 'The hook is allowed to run for 30 seconds, as Junio wrote.' }
const OTHER = { id: 'q2', text: 'Ferries cross the bay.' }

test.each<[Lie, string | undefined]>([
  ['number', 'The hook is allowed to run for 33 seconds, as Junio wrote.'],
  ['name', 'The hook is allowed to run for 30 seconds, as Zorbax wrote.'],
  ['negation', 'The hook is not allowed to run for 30 seconds, as Junio wrote.'],
  ['reworded denial', 'In practice such a hook is hardly ever allowed to run for 30 seconds, as Junio wrote.'],
  ['opposite', 'As a rule the hook is forbidden to run for 30 seconds, as Junio wrote.'],
  ['attribution', 'According to Gartner, the hook is allowed to run for 30 seconds, as Junio wrote.'],
  ['other page', OTHER.text],
  ['none', undefined],
])('a false claim of the kind "%s" is contradicted by its quote', (lie, text) => {
  expect(lieOf(lie, QUOTE, OTHER)?.text).toBe(text)
})

test.each([
  ['a list', '- ', '\n- '],
  ['a paragraph', '', ' '],
])('a false claim that a report cites in %s is counted, and the quote itself is not', (_, before, between) => {
  const [lie, truth] = [lieOf('negation', QUOTE, OTHER)?.text ?? '', QUOTE.text]
  const content = `## In short\n\n${before}${lie} [1]${between}${truth} [1]\n`
  const annotations = [lie, truth].map((text) => {
    const start_index = content.indexOf(`${text} [1]`) + text.length + 1
    return { start_index, end_index: start_index + 3, url: 'a', title: 'a', quote: truth }
  })
  const report: WrittenReport = {
    ...{ content, annotations, abstained: false },
    ...{ writer: 'model', quoted: 1, dropped: 2, tokens: 9 },
  }
  const scores = scoreLiar([report], new Map([[lie, 'negation']]))
  expect(scores).toMatchObject({ reports: 1, byModel: 1, verbatim: 1, reworded: 0, quoted: 1, dropped: 2, tokens: 9 })
  expect(scores.falsified).toEqual(new Map([['negation', 1]]))
})

test('the model makes each false claim that its quotes allow, and records it', async () => {
  await using model = await startLyingModel()
  const quotes = Array.from({ length: 8 }, (_, at) => ({ ...QUOTE, id: `q${at}`, text: `${at}: ${QUOTE.text}` }))
  const messages = [{ role: 'user', content: JSON.stringify({ question: 'x', quotes }) }]
  const response = await fetch(model.url, { method: 'POST', body: JSON.stringify({ messages }) })
  const { choices } = (await response.json()) as { choices: [{ message: { content: string } }] }
  const { claims } = JSON.parse(choices[0].message.content) as { claims: { text: string }[] }
  expect(claims).toHaveLength(8)
  expect(model.told.size).toBe(7)
  for (const text of model.told.keys()) expect(claims.map((claim) => claim.text)).toContain(text)
})
