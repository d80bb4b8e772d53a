import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { beforeAll, describe, expect, inject, it } from 'vitest'
import { TEST_KEY } from './stack.ts'
import { tokensOf, vectorOf } from './support/embeddings.ts'
import { describeEmbeddings } from './support/embeddings-service.ts'
import { findPythonEnv } from './support/python.ts'
import { UNICODE } from './support/sdk.ts'

const run = promisify(execFile)
const SCRIPTS = join(import.meta.dirname, 'python')
const SCRIPT = join(SCRIPTS, 'embeddings_cases.py')
const CASES = [...readFileSync(SCRIPT, 'utf8').matchAll(/^(?:async )?def (case_\w+)/gm)].map(([, name]) => String(name))
/** Longest run of the script: seconds when the machine is idle. */
const SCRIPT_MS = 90_000

const TEXTS = ['one', 'two words', UNICODE]

/** The environments are those of sdk-python.test.ts, named as their requirements files are. */
const ENVS = await Promise.all(
  ['new', 'middle', 'old'].map(async (name) => {
    const lines = readFileSync(join(SCRIPTS, `requirements-${name}.txt`), 'utf8').split('\n')
    const pins = lines.filter((line) => line !== '' && !line.startsWith('#'))
    return { sdk: `${pins.find((pin) => pin.startsWith('openai=='))}`, bin: await findPythonEnv(`sdk-${name}`, pins) }
  }),
)

describeEmbeddings('embeddings on Python', inject('kafka'), (service) => {
  for (const { sdk, bin } of ENVS) {
    describe.skipIf(!bin)(sdk, () => {
      let report: Record<string, string | null>
      beforeAll(async () => {
        const vectors = TEXTS.map((text) => [...vectorOf(text)])
        const tokens = TEXTS.reduce((sum, text) => sum + tokensOf(text), 0)
        const given = { key: TEST_KEY, free: service.stack.url, texts: TEXTS, vectors, tokens }
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
