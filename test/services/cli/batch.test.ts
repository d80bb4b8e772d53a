import type { ChildProcess } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { batchTable } from '#services/cli/batches/results.ts'
import { FORM_KEY } from '#shared/tables/answers.ts'
import { emptyDirectory, sluice } from '../../support/processes/sluice.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

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

  it('uploads a file, follows its batch, and prints the results', async () => {
    const path = await fileOf([line('a', 'hello'), line('b', '!echo error=400')])
    const followed = await run(['batch', path, '--follow', '--metadata', 'report=11'])
    expect(followed.code).toBe(0)
    expect(followed.err).toContain('completed: 1 of 2 requests completed, 1 failed')
    expect(followed.err).toMatch(/, 1 failed, total time (< 1|\d+) s, \d+ input tokens, \d+ output tokens\n {2}1 /)
    // Only the first line has the id of the batch. Later lines are events with the id of the internal job that runs the batch.
    const { id } = followed.lines[0] as { id: string }
    expect(followed.lines[0]).toMatchObject({ id: expect.stringMatching(/^batch_/), object: 'batch' })
    expect((await run(['get', id])).err).toContain('completed: 1 of 2 requests completed, 1 failed, total time ')
    const printed = await run(['results', id])
    expect(printed.lines.map(({ custom_id }) => custom_id)).toEqual(['a', 'b'])
    expect((await run(['results', id, '--errors'])).lines.map(({ custom_id }) => custom_id)).toEqual(['b'])
    const listed = await run(['jobs', '--group', id, '--metadata', 'custom_id=a'])
    expect(listed.lines).toMatchObject([{ endpoint: CHAT, metadata: { custom_id: 'a' }, status: 'completed' }])
  })

  it('leaves the batch running after Ctrl-C and prints how to resume', async () => {
    const path = await fileOf([line('a', '!echo tokens=1000 delay_ms=1000'), line('b', 'hello')])
    let child: ChildProcess | undefined
    const env = { SLUICE_URL: stack.url, SLUICE_API_KEY: TEST_KEY }
    const following = sluice(['batch', path, '--follow'], { env, onStart: (started) => (child = started) })
    const jobs = async (query: string) => {
      const { data } = (await (await stack.get(`/v1/jobs?${query}`)).json()) as { data: { id: string }[] }
      return data
    }
    const [job] = await until(async () => {
      const found = await jobs('endpoint=/v1/batches&status=in_progress')
      return found.length > 0 && (await jobs(`group=${found[0]?.id}&status=completed`)).length === 1 ? found : undefined
    })
    const id = job?.id.replace('job_', 'batch_') ?? ''
    await until(() => child?.kill('SIGINT'))
    const { code, err } = await following
    const next = `To resume: sluice follow ${id} --after`
    expect([code, err]).toEqual([130, expect.stringContaining(next)])
    expect(err).toContain(`To print the result after the end: sluice results ${id}\n`)
    const early = await run(['results', id])
    expect([early.code, early.err]).toEqual([5, expect.stringContaining(`sluice follow ${id}`)])
    expect(early.lines.map(({ custom_id }) => custom_id)).toEqual(['b'])
    expect((await run(['get', id])).lines).toMatchObject([{ status: 'in_progress' }])
    expect((await run(['batches', '--limit', '1'])).lines).toMatchObject([{ id, model: 'echo-1', cost_usd: null }])
    expect((await run(['cancel', id])).code).toBe(0)
    const again = await run(['follow', id])
    expect([again.code, again.err]).toEqual([
      3,
      expect.stringContaining('cancelled: 1 of 2 requests completed, 1 failed'),
    ])
    expect((await run(['results', id])).lines.map(({ custom_id }) => custom_id)).toEqual(['b', 'a'])
  })

  it('shows the number of failed requests of each batch in a table of 80 columns', () => {
    const counts = { total: 500, completed: 488, failed: 12 }
    const batch = {
      id: `batch_${'x'.repeat(32)}`,
      status: 'completed',
      endpoint: CHAT,
      created_at: 0,
      completed_at: 60,
    }
    const found = { ...batch, request_counts: counts, model: 'model-1', metadata: { name: 'customer-questions.csv' } }
    const [head = '', row = ''] = batchTable([found], 80).split('\n')
    expect(head).toMatch(/^batch +name +done +failed +status$/)
    expect(row).toMatch(/^batch_x{32} +customer-\S*… +500\/500 +12 +completed$/)
    const metadata = { ...found.metadata, [FORM_KEY]: '{"prompt":["question"],"choices":["yes","no"]}' }
    const [wideHead, wideRow] = batchTable([{ ...found, metadata, cost_usd: 0.25, invalid_answers: 3 }], 200).split(
      '\n',
    )
    expect(wideHead).toMatch(/^batch +name +prompt +done +failed +status +end +rate +cost +model +age$/)
    expect(wideRow).toMatch(
      /customer-questions\.csv +question +500\/500 +12, 3 invalid +completed .* \$0\.2500 +model-1/,
    )
  })

  it('exits with an error code and names the invalid line or the missing fields of a file', async () => {
    const twice = await run(['batch', await fileOf([line('a', 'x'), line('a', 'y')])])
    expect([twice.code, twice.err]).toEqual([5, expect.stringContaining('Line 2: The custom_id')])
    const endless = await run(['batch', await fileOf([{ custom_id: 'a' }])])
    expect([endless.code, endless.err]).toEqual([2, expect.stringContaining('has no url')])
    const prompts = join(await emptyDirectory(), 'prompts.txt')
    await writeFile(prompts, 'What is a sluice?\n')
    const asked = await run(['batch', prompts])
    expect([asked.code, asked.err]).toEqual([
      2,
      expect.stringMatching(/is not a request\.\s+.*custom_id, method, url and body/),
    ])
    const failed = await run(['batch', await fileOf([line('a', 'x')]), '--endpoint', '/v1/embeddings', '--follow'])
    expect([failed.code, failed.err]).toEqual([1, expect.stringContaining('line 1: The url')])
  })
})
