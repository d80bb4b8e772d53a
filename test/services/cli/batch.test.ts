import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { emptyDirectory, sluice } from '../../support/processes/sluice.ts'
import { type Stack, startStack, TEST_KEY } from '../../support/stack.ts'

const CHAT = '/v1/chat/completions'

describe('sluice batch', () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await startStack()
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  const run = (args: string[]) => sluice(args, { env: { SLUICE_URL: stack.url, SLUICE_API_KEY: TEST_KEY } })
  const fileOf = async (lines: readonly object[]) => {
    const path = join(await emptyDirectory(), 'requests.jsonl')
    await writeFile(path, lines.map((line) => JSON.stringify(line)).join('\n'))
    return path
  }
  const line = (custom_id: string, content: string) => {
    return { custom_id, method: 'POST', url: CHAT, body: { model: 'echo-1', messages: [{ role: 'user', content }] } }
  }

  it('uploads a file, follows its batch, and prints what came of it', async () => {
    const path = await fileOf([line('a', 'hello'), line('b', '!echo error=400')])
    const followed = await run(['batch', path, '--follow', '--metadata', 'report=11'])
    expect(followed.code).toBe(0)
    expect(followed.err).toContain('completed: 1 of 2 requests completed, 1 failed')
    const [id = ''] = /batch_\w+/.exec(followed.err) ?? []
    const printed = await run(['results', id])
    expect(printed.lines.map(({ custom_id }) => custom_id)).toEqual(['a', 'b'])
    expect((await run(['results', id, '--errors'])).lines.map(({ custom_id }) => custom_id)).toEqual(['b'])
    const listed = await run(['jobs', '--group', id, '--metadata', 'custom_id=a'])
    expect(listed.lines).toMatchObject([{ endpoint: CHAT, metadata: { custom_id: 'a' }, status: 'completed' }])
  })

  it('says which line is broken, and what a file lacks', async () => {
    const twice = await run(['batch', await fileOf([line('a', 'x'), line('a', 'y')])])
    expect([twice.code, twice.err]).toEqual([5, expect.stringContaining('Line 2: The custom_id')])
    const endless = await run(['batch', await fileOf([{ custom_id: 'a' }])])
    expect([endless.code, endless.err]).toEqual([2, expect.stringContaining('names no url')])
    const failed = await run(['batch', await fileOf([line('a', 'x')]), '--endpoint', '/v1/embeddings', '--follow'])
    expect([failed.code, failed.err]).toEqual([1, expect.stringContaining('line 1: The url')])
  })
})
