import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type LocalCorpus, openLocalCorpus } from '#shared/search/local/local.ts'
import { researched } from '../../support/research/run.ts'
import languages from './languages.json' with { type: 'json' }

/** For each language, a question that the corpus does not answer. */
const UNANSWERED = [
  '月球上有多少个火山？',
  '東京タワーの建設費用はいくらですか？',
  '부산의 인구는 얼마입니까?',
  'Wer malte das Deckengemälde der Klosterkirche in Ottobeuren?',
  'Сколько стоит билет в московское метро?',
  '¿Quién escribió la novela Pedro Páramo?',
]

let directory: string
let corpus: LocalCorpus
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'sluice-languages-'))
  for (const { language, text } of languages) await writeFile(join(directory, `${language}.md`), text)
  const where = { directory, paths: languages.map(({ language }) => `${language}.md`) }
  corpus = openLocalCorpus({ corpus: where, directory: join(directory, 'index') })
})
afterAll(async () => {
  await corpus.close()
  await rm(directory, { recursive: true })
})

const cases = languages.flatMap(({ language, questions }) =>
  questions.map(([question = '', answer = '']) => ({ language, question, answer })),
)

describe('research in other languages', () => {
  test('is tested with at least twelve languages and forty questions', () => {
    expect(languages.length).toBeGreaterThanOrEqual(12)
    expect(cases.length).toBeGreaterThanOrEqual(40)
  })

  test.each(cases)(
    "answers with a sentence of the question's language, $language: $question",
    async ({ question, answer }) => {
      const { annotations, report, end } = await researched({ backends: [corpus] }, { question })
      const quotes = annotations.map(({ url_citation }) => url_citation.quote)
      expect(quotes.slice(0, 3).join('\n'), `quotes at the beginning of the report ${report}`).toContain(answer)
      const asking =
        /^(?:wo|wie|wann|quelle|quand|où|est|какая|кто|какова|كم|من|أين|kaç|ne|कितनी|कहाँ|چقدر|کجا|ποιο|πότε|qué|cuánto|quién)$/iu
      expect(end.quality.gaps.filter((gap) => asking.test(gap))).toEqual([])
    },
  )

  test.each(cases.map(({ question }) => question.normalize('NFD')))(
    'answers a question in Unicode NFD: %s',
    async (question) => {
      const { annotations } = await researched({ backends: [corpus] }, { question })
      expect(annotations.length).toBeGreaterThan(0)
    },
  )
})

test.each(UNANSWERED)('research has no citation for an unanswerable question: %s', async (question) => {
  const { annotations, report } = await researched({ backends: [corpus] }, { question })
  expect(annotations, `citations of the report ${report}`).toEqual([])
})

test('research of a question in a script without spaces makes no claim about the sources', async () => {
  const { report, end } = await researched({ backends: [corpus] }, { question: 'ꦏꦸꦛꦲꦶꦏꦶꦲꦤꦁꦲꦼꦤ꧀ꦝꦶ' })
  expect(end.quality.gaps).toEqual([])
  expect(report).not.toContain('No source that was read')
  expect(report).not.toContain('do not answer')
})
