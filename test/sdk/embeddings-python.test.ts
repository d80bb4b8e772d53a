import { beforeAll, describe, expect, inject, it } from 'vitest'
import { tokensOf, vectorOf } from '../support/embeddings/embeddings.ts'
import { describeEmbeddings } from '../support/embeddings/service.ts'
import { findPythonEnv } from '../support/processes/python.ts'
import { CASES_MS, casesOf, pinsOf, runCases } from '../support/python-cases.ts'
import { UNICODE } from '../support/sdk.ts'
import { TEST_KEY } from '../support/stack.ts'

const SCRIPT = 'embeddings_cases.py'
const CASES = casesOf(SCRIPT)

const TEXTS = ['one', 'two words', UNICODE]

/** Python environments, shared with python.test.ts. Their names are those of their requirements files. */
const ENVS = await Promise.all(
  ['new', 'middle', 'old'].map(async (name) => {
    const pins = pinsOf(name)
    return { sdk: `${pins.find((pin) => pin.startsWith('openai=='))}`, bin: await findPythonEnv(`sdk-${name}`, pins) }
  }),
)

describeEmbeddings('embeddings through the Python SDK', inject('kafka'), (service) => {
  for (const { sdk, bin } of ENVS) {
    describe.skipIf(!bin)(sdk, () => {
      let report: Record<string, string | null>
      beforeAll(async () => {
        const vectors = TEXTS.map((text) => [...vectorOf(text)])
        const tokens = TEXTS.reduce((sum, text) => sum + tokensOf(text), 0)
        const given = { key: TEST_KEY, free: service.stack.url, texts: TEXTS, vectors, tokens }
        report = await runCases(bin ?? '', SCRIPT, given)
      }, CASES_MS)

      it.each(CASES)('the Python SDK for embeddings passes the case %s', (name) => {
        expect(report[name]).toBe(null)
      })
    })
  }
})
