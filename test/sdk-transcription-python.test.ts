import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { TEST_KEY } from './stack.ts'
import { findPythonEnv } from './support/python.ts'
import { startTranscriptions, type Transcriptions, wav } from './support/transcription-service.ts'

const run = promisify(execFile)
const SCRIPTS = join(import.meta.dirname, 'python')
const SCRIPT = join(SCRIPTS, 'transcription_cases.py')
const CASES = [...readFileSync(SCRIPT, 'utf8').matchAll(/^(?:async )?def (case_\w+)/gm)].map(([, name]) => String(name))
/** Longest run of the script: seconds when the machine is idle. */
const SCRIPT_MS = 90_000

/** The environments are those of sdk-python.test.ts, named as their requirements files are. */
const ENVS = await Promise.all(
  ['new', 'middle', 'old'].map(async (name) => {
    const lines = readFileSync(join(SCRIPTS, `requirements-${name}.txt`), 'utf8').split('\n')
    const pins = lines.filter((line) => line !== '' && !line.startsWith('#'))
    return { sdk: `${pins.find((pin) => pin.startsWith('openai=='))}`, bin: await findPythonEnv(`sdk-${name}`, pins) }
  }),
)

for (const mode of ['embedded', 'Kafka']) {
  const kafka = mode === 'Kafka' ? (inject('kafka') ?? undefined) : undefined
  describe.skipIf(mode === 'Kafka' && !kafka)(`on Python, ${mode}`, () => {
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
          const options = { env: { ...process.env, PYTHONDONTWRITEBYTECODE: '1' }, timeout: SCRIPT_MS }
          const { stdout } = await run(join(bin ?? '', 'python'), [SCRIPT, JSON.stringify(given)], options)
          report = JSON.parse(stdout)
        })

        it.each(CASES)('%s', (name) => {
          expect(report[name]).toBe(null)
        })
      })
    }
  })
}
