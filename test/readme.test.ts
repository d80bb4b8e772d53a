/* Runs the commands of README.md verbatim. The service has a scripted model with the name that the commands use. */
import { execFile } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { SANDBOX_MISSING, testZygote } from './support/sandbox/sandbox.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from './support/stack.ts'

const execute = promisify(execFile)
const TEXT = readFileSync(new URL('../README.md', import.meta.url), 'utf8')
const SHELL = [...TEXT.matchAll(/```sh\n([\s\S]*?)```/g)].map(([, code = '']) => code)
const CALLS = SHELL.filter((code) => code.startsWith('curl'))
const CALL_MS = 60_000

describe.skipIf(SANDBOX_MISSING !== undefined)('README.md', { timeout: CALL_MS }, () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await startStack({
      models: [{ ...ECHO_MODEL, id: 'smollm2-135m-instruct' }],
      sandboxes: [{ name: 'zygote', load: () => testZygote() }],
    })
  }, CALL_MS)
  afterAll(() => stack[Symbol.asyncDispose]())

  async function run(code: string): Promise<string> {
    const here = code.replaceAll('http://127.0.0.1:8080', stack.url).replaceAll('sk-local-development', TEST_KEY)
    return (await execute('sh', ['-c', here.replaceAll(/^curl /gm, 'curl -s ')], { timeout: CALL_MS })).stdout
  }

  test('contains three calls that succeed: chat, code in the sandbox, and a durable job that is read back', async () => {
    const [chat = '', code = '', job = ''] = CALLS
    expect(CALLS).toHaveLength(3)
    expect(JSON.parse(await run(chat))).toMatchObject({ object: 'chat.completion', model: 'smollm2-135m-instruct' })
    expect(JSON.parse(await run(code))).toMatchObject({ success: true, stdout: '5050\n' })

    const [submit = '', wait = ''] = job.split(/(?=^curl 'http)/m)
    const accepted = await run(submit)
    expect(accepted).toMatch(/^HTTP\/1\.1 202 /)
    const { id } = JSON.parse(accepted.slice(accepted.indexOf('{')))
    expect(JSON.parse(await run(wait.replace('JOB_ID', id)))).toMatchObject({ id, status: 'completed' })
  })

  test('links to existing files only', () => {
    const links = [...TEXT.matchAll(/\]\(([^)#]+)[^)]*\)/g)].map(([, link = '']) => link)
    for (const link of links)
      expect(existsSync(new URL(`../${link}`, import.meta.url)), `existence of the linked file ${link}`).toBe(true)
    expect(links.length).toBeGreaterThan(10)
  })
})
