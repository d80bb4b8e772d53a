import { describe, expect, test } from 'vitest'
import { answerTypesOf, holdsType, requiredOf } from '#services/research/evidence/answer-type.ts'
import { PagesBackend, researched } from '../../support/research/run.ts'

const PAGE = `# The harbour\n\nThe engineer Tilda Marlow planned the harbour of Wexley in 1874 for the herring trade.\n
The harbour of Wexley has a long wall of granite on its northern side.\n
# The lighthouse\n\nThe lighthouse of Ardmoor shines over the harbour at night. Its lamp is painted red.\n
# The ferry\n\nA ferry crosses the bay of Ardmoor every morning, and its ticket is sold on board.\n`

const cites = async (question: string) => {
  const { annotations } = await researched(
    { backends: [new PagesBackend({ 'https://a.example/': PAGE })] },
    { question },
  )
  return annotations.length > 0
}

describe('sources answer a question', () => {
  test.each([
    'Which engineer planned the harbour of Wexley?',
    'Who planned the harbour of Wexley?',
    'In which year was the harbour of Wexley planned?',
    'What is the northern wall of the harbour in Wexley made of?',
  ])('%s', async (question) => {
    expect(await cites(question)).toBe(true)
  })
})

describe('sources do not answer a question', () => {
  test.each([
    ['what is asked of a name is said of nothing near it', 'What salary did Tilda Marlow of Wexley earn?'],
    ['nobody is named where a person is asked for', 'Who painted the lamp of the lighthouse of Ardmoor?'],
    ['no day or year is near where one is asked for', 'In which year was the lighthouse of Ardmoor painted red?'],
    ['the name is of another paragraph', 'What does a ticket of the ferry in Wexley cost?'],
  ])('where %s', async (_, question) => {
    expect(await cites(question)).toBe(false)
  })
})

test.each([
  ['When was it founded?', ['date'], 'It began in June 2014.', 'It began with a party.'],
  ['Since which year is it kept?', ['date'], 'It is kept since 2.39.', 'It is kept in a box.'],
  ['How many copies were sold?', ['number'], 'They sold twelve of them.', 'They sold some of them.'],
  ['How long may a title be?', ['number'], 'It has 50 characters.', 'It may be short.'],
  ['Who wrote vi?', ['person'], 'The editor was written by Bill Joy at night.', 'The Editor was written at night.'],
])('"%s" asks for %j', (question, types, holding, other) => {
  const required = requiredOf(answerTypesOf(question))
  expect(required).toEqual(types)
  for (const type of required) {
    expect(holdsType(holding, type)).toBe(true)
    expect(holdsType(other, type)).toBe(false)
  }
})

test.each(['Who may read a job?', 'When should I retry?', 'Why is it slow?'])('"%s" asks for no value', (question) => {
  expect(requiredOf(answerTypesOf(question))).toEqual([])
})
