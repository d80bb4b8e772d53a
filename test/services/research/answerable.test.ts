import { describe, expect, test } from 'vitest'
import {
  answerFormOf,
  answerTypesOf,
  asksAmount,
  fitOf,
  holdsAmount,
  holdsType,
  requiredOf,
} from '#services/research/evidence/answer-type.ts'
import { isEvident } from '#services/research/evidence/answerable.ts'
import { findEvidence } from '#services/research/evidence/evidence.ts'
import { countPassages, rankPassages, weightsIn } from '#services/research/question/passages.ts'
import { anchorsOf, namesOf, parseQuestion, queryTermsIn, vocabularyOf } from '#services/research/question/question.ts'
import { runToEnd } from '#shared/lib/yielding.ts'
import { PagesBackend, researched, snapshotOf } from '../../support/research/run.ts'

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

describe('research of an answerable question', () => {
  test.each([
    'Which engineer planned the harbour of Wexley?',
    'Who planned the harbour of Wexley?',
    'In which year was the harbour of Wexley planned?',
    'What is the northern wall of the harbour in Wexley made of?',
  ])('cites a source: %s', async (question) => {
    expect(await cites(question)).toBe(true)
  })
})

describe('research of an unanswerable question', () => {
  test.each([
    ['the requested property of a name is not near the name', 'What salary did Tilda Marlow of Wexley earn?'],
    ['the question asks for a person and no person is named', 'Who painted the lamp of the lighthouse of Ardmoor?'],
    ['the question asks for a date and no date is nearby', 'In which year was the lighthouse of Ardmoor painted red?'],
    ['no text mentions the event in the question', 'Why was the granite wall of the harbour of Wexley removed?'],
    ['no text contains the number in the question', 'What does exit code 9 of the harbour mean?'],
    ['the name in the question is in another paragraph', 'What does a ticket of the ferry in Wexley cost?'],
  ])('cites no source if %s', async (_, question) => {
    expect(await cites(question)).toBe(false)
  })
})

test.each([
  ['When was it founded?', ['date'], 'It began in June 2014.', 'It began with a party.'],
  ['Since which year is it kept?', ['date'], 'It is kept since 2.39.', 'It is kept in a box.'],
  ['How many copies were sold?', ['number'], 'They sold twelve of them.', 'They sold some of them.'],
  ['How long may a title be?', ['number'], 'It has 50 characters.', 'It may be short.'],
  ['Since which version is it removed?', ['date'], 'It is gone since 20.10.', 'It is gone.'],
  ['Which port does it use?', ['number'], 'It listens on 8118.', 'It listens on a port.'],
  ['Who wrote vi?', ['person'], 'The editor was written by Bill Joy at night.', 'The Editor was written at night.'],
])('the question "%s" requires the answer type %j', (question, types, holding, other) => {
  const required = requiredOf(answerTypesOf(question))
  expect(required).toEqual(types)
  for (const type of required) {
    expect(holdsType(holding, type)).toBe(true)
    expect(holdsType(other, type)).toBe(false)
  }
})

test.each(['Who may read a job?', 'When should I retry?', 'Why is it slow?'])(
  'the question "%s" requires no answer type',
  (question) => {
    expect(requiredOf(answerTypesOf(question))).toEqual([])
  },
)

test.each([
  ['How do I create a repository with the repo-create command?', 'Create a repository and recreate the repo.', false],
  ['How do I create a repository with the repo-create command?', 'Run repo-create first.', true],
  ['What does exit code 9 mean?', 'exit code 1: failed, see page 9', false],
  ['What does exit code 9 mean?', 'Exit codes 1, 2 and 9 are errors.', true],
  ['When will Debian 14 be released?', '14.3. Making a distribution of your own', false],
  ['When will Debian 14 be released?', '14\t2027-06-01', true],
])('the required terms of the question "%s" match the text %j: %j', (question, text, isAbout) => {
  const anchors = anchorsOf(question)
  expect(anchors).toHaveLength(1)
  expect(anchors.every(({ pattern }) => pattern.test(text))).toBe(isAbout)
})

test.each([
  ['Which permissions does the file need on Linux?', []],
  ['Why is that user id never assigned on a Debian system?', []],
  ['Which Linux capability sets the clock?', []],
  ['When was the kernel Linux first released?', ['Linux']],
])('the names in the question "%s" are %j', (question, names) => {
  expect(namesOf(question)).toEqual(names)
})

test.each([
  [
    'What is the price of the ferry to Ardmoor?',
    'The ferry to Ardmoor has 40 seats.',
    'The ferry to Ardmoor costs 40 euros.',
  ],
  [
    'Was ist der Preis der Fähre nach Ardmoor?',
    'Die Fähre nach Ardmoor hat 40 Plätze.',
    'Die Fähre kostet 40 € pro Person.',
  ],
  ['印刷版手册售价多少元？', '印刷版手册共有 40 章。', '印刷版手册每本 40 元。'],
])('the question "%s" asks for an amount of money', (question, other, answer) => {
  expect(fitOf(other, question, ['number'])).toBeLessThan(0.5)
  expect(fitOf(answer, question, ['number'])).toBe(1)
})

test.each([
  ['How many people use it?', 'It was released on May 14, 2022.', 'Some 2,022 people use it.'],
  ['De combien de parties est-il composé ?', 'Il est composé de parties.', 'Il est composé de trois parties.'],
  ['Which release removed it?', 'It was removed at night.', 'It was removed in v17.12.'],
])('the answer to "%s" is not in %j, but in %j', (question, other, answer) => {
  const types = answerTypesOf(question, !question.startsWith('De '))
  expect(fitOf(other, question, types)).toBeLessThan(0.5)
  expect(fitOf(answer, question, types)).toBeGreaterThanOrEqual(0.5)
})

test('a quote must contain the name "code 9" of a question, but need not contain the amount "30 seconds"', () => {
  expect(anchorsOf('What does exit code 9 mean after 30 seconds?').map(({ text }) => text)).toEqual(['code 9'])
})

test('sentences with only one word of the question do not answer the question', async () => {
  const page = `# Ardmoor\n\nThe lamp of Ardmoor burns at night. Gulls sit on the roof. Rain falls often. A warranty covers each boat of
Ardmoor. Gulls eat herring. Snow is rare. The scheme of the taxes is old. Boats
are blue. Crabs are red. A replacement of the old wall of Ardmoor began.\n`
  const question = 'What is the warranty scheme of a lamp replacement in Ardmoor?'
  const { annotations } = await researched(
    { backends: [new PagesBackend({ 'https://a.example/': page })] },
    { question },
  )
  expect(annotations).toEqual([])
})

test.each([
  'Which level does the encoder use if I give the switch no value?',
  'What is sent if I never changed anything?',
  'How large may a frame get, unless configured?',
  'How long is a key kept when the lifetime is not set?',
])('the question "%s" asks for a default value', (question) => {
  expect(answerTypesOf(question)).toContain('default')
})

/** Simulates a corpus of many passages. Words in `absent` occur in no passage, and each other word occurs in `holding` passages. */
class CountingBackend extends PagesBackend {
  readonly #absent: readonly string[]
  readonly #passages: number
  readonly #holding: number

  constructor(absent: readonly string[], passages: number, holding = 5) {
    super({ 'https://a.example/': PAGE })
    this.#absent = absent
    this.#passages = passages
    this.#holding = holding
  }

  async countTerms(terms: readonly string[]) {
    return { passages: this.#passages, holding: terms.map((term) => (this.#absent.includes(term) ? 0 : this.#holding)) }
  }
}

test.each([
  ['How is the lamp of the lighthouse of Ardmoor painted by zorilla?', 20_000, false],
  ['How is the lamp of the lighthouse of Ardmoor painted by zorilla?', 100, true],
  ['In which zorilla is the lamp of the lighthouse of Ardmoor painted?', 20_000, true],
])(
  'the question "%s" with the unknown word "zorilla" in a corpus of %d passages is answered: %s',
  async (question, passages, isAnswered) => {
    const run = await researched({ backends: [new CountingBackend(['zorilla'], passages)] }, { question })
    expect(run.annotations.length > 0).toBe(isAnswered)
    expect(run.end.quality.gaps).toContain('zorilla')
  },
)

test.each([
  [20_000, 5, true],
  [20_000, 4_000, false],
  [4_000, 400, true],
])(
  'in a corpus of %d passages, where each word occurs in %d passages, a sentence with four of six question words is cited: %s',
  async (passages, holding, isEnough) => {
    const backend = new CountingBackend([], passages, holding)
    const question = 'How is the lamp of the lighthouse of Ardmoor painted by gulls in winter?'
    const { annotations } = await researched({ backends: [backend] }, { question })
    expect(annotations.length > 0).toBe(isEnough)
  },
)

test.each([
  ['which engineer planned the harbour of Wexley for the trade', true],
  ['which cook sells soup to the visitors of the harbour of Wexley', false],
])(
  'in a large corpus, a long question that describes a situation and asks "%s" is answered: %s',
  async (asked, isAnswered) => {
    const question = `On a slow laptop in our office we maintain a spreadsheet of old boats, because my colleague from accounting wonders ${asked}?`
    const { annotations } = await researched({ backends: [new CountingBackend([], 20_000)] }, { question })
    expect(annotations.length > 0).toBe(isAnswered)
  },
)

test.each(['What is nginx?', 'What does nginx mean?'])(
  'a large corpus answers "%s", which names only a subject',
  (text) => {
    const question = runToEnd(parseQuestion({ question: text, context: [] }))
    const page = snapshotOf('https://nginx.example/', '# nginx\n\nnginx is a web server and a reverse proxy.\n')
    const passages = runToEnd(countPassages(page, queryTermsIn(question)))
    const weights = weightsIn([...vocabularyOf(question).keys()], passages)
    const ranked = runToEnd(rankPassages(question, passages, weights))
    const { candidates } = runToEnd(findEvidence(question, ranked, weights, { passages: 5_000, absent: new Set() }))
    expect(candidates.length).toBeGreaterThan(0)
  },
)

test('the evidence for a question of 1,000 words is computed in at least 1,000 steps that yield to other work', () => {
  const words = Array.from({ length: 1_000 }, (_, index) => `word${index}`)
  const question = runToEnd(parseQuestion({ question: words.join(' '), context: [] }))
  const part = { text: question.text, terms: new Set(words), candidates: [] }
  const steps = [...isEvident(question, part, [], new Map(), 20_000)]
  expect(steps.length).toBeGreaterThanOrEqual(1_000)
})

test.each([
  [
    'At which file size does the ferry rotate a log by default?',
    'Install pm2 of 2024, see [3].',
    'It rotates at 10 MB.',
  ],
  ['How deep may a lake be for 30 boats?', 'It is deep for 30 boats.', 'It is 40 deep for 30 boats.'],
  ['What is the default ping interval of the lamp?', 'The ping is in version 2.1.3 #17.', 'The lamp pings twice.'],
])('the question "%s" asks for an amount, which %j lacks and %j contains', (question, other, answer) => {
  expect(asksAmount(question)).toBe(true)
  expect(holdsAmount(other, question)).toBe(false)
  expect(holdsAmount(answer, question)).toBe(true)
})

test.each(['Which option sets the timeout?', 'Who planned the harbour?', 'Which lamp is painted red?'])(
  'the question "%s" asks for no amount',
  (question) => {
    expect(asksAmount(question)).toBe(false)
  },
)

test.each([
  ['At which size does the harbour of Wexley paint its lamps red in winter?', false],
  ['Which lamps does the harbour of Wexley have in winter?', true],
])('in a large corpus without amounts, the question "%s" is answered: %s', async (question, isAnswered) => {
  const page = '# The harbour of Wexley\n\nThe lamps of the harbour of Wexley are red in winter.\n'
  class Backend extends PagesBackend {
    async countTerms(terms: readonly string[]) {
      return { passages: 20_000, holding: terms.map(() => 5) }
    }
  }
  const { annotations } = await researched({ backends: [new Backend({ 'https://a.example/': page })] }, { question })
  expect(annotations.length > 0).toBe(isAnswered)
})

test.each([
  ['Where does the server store its logs?', 'path'],
  ['Which directory holds the plugins?', 'path'],
  ['Which long option prints the version?', 'identifier'],
  ['How do I print the version?', 'identifier'],
  ['An option exists. Which country has it?', undefined],
  ['Who planned the harbour?', undefined],
])('the question "%s" requires an answer of the form: %s', (question, form) => {
  expect(answerFormOf(question)).toBe(form)
})

test('the required form of a question with 200,000 question words is derived in linear time', () => {
  expect(answerFormOf('which '.repeat(200_000))).toBeUndefined()
})
