import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { findPythonEnv } from '../support/processes/python.ts'
import { CASES_MS, casesOf, pinsOf, runCases } from '../support/python-cases.ts'
import { startTranscriptions, type Transcriptions, wav } from '../support/speech/service.ts'
import { TEST_KEY } from '../support/stack.ts'

const SCRIPT = 'transcription_cases.py'
const CASES = casesOf(SCRIPT)

/** Python environments, shared with python.test.ts. Their names are those of their requirements files. */
const ENVS = await Promise.all(
  ['new', 'middle', 'old'].map(async (name) => {
    const pins = pinsOf(name)
    return { sdk: `${pins.find((pin) => pin.startsWith('openai=='))}`, bin: await findPythonEnv(`sdk-${name}`, pins) }
  }),
)

for (const mode of ['embedded', 'Kafka']) {
  const kafka = mode === 'Kafka' ? (inject('kafka') ?? undefined) : undefined
  describe.skipIf(mode === 'Kafka' && !kafka)(`transcription through the Python SDK, ${mode}`, () => {
    let service: Transcriptions
    beforeAll(async () => {
      service = await startTranscriptions({ kafka })
    })
    afterAll(() => service[Symbol.asyncDispose]())

    for (const { sdk, bin } of ENVS) {
      describe.skipIf(!bin)(sdk, () => {
        let report: Record<string, string | null>
        beforeAll(async () => {
          const given = { key: TEST_KEY, free: service.url, audio: wav(2).toString('base64') }
          report = await runCases(bin ?? '', SCRIPT, given)
        }, CASES_MS)

        it.each(CASES)('the Python SDK for transcription passes the case %s', (name) => {
          expect(report[name]).toBe(null)
        })
      })
    }
  })
}
