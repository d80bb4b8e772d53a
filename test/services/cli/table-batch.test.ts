import type { ChildProcess } from 'node:child_process'
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { findTable, type Table } from '#services/cli/batches/input.ts'
import { convertRows, RunFiles, writeOutput } from '#services/cli/batches/table-run.ts'
import type { BatchesApi, BatchView } from '#services/cli/client/http.ts'
import { sluice } from '../../support/processes/sluice.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

describe('sluice batch with a table', () => {
  let stack: Stack
  let directory: string
  beforeAll(async () => {
    stack = await startStack()
    directory = await mkdtemp(join(tmpdir(), 'sluice-tables-'))
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    await rm(directory, { recursive: true })
  })

  const env = () => ({ SLUICE_URL: stack.url, SLUICE_API_KEY: TEST_KEY })
  const run = (args: string[], onStart?: (child: ChildProcess) => void) =>
    sluice(['batch', ...args, ...(args.includes('--model') ? [] : ['--model', 'echo-1'])], {
      env: env(),
      ...(onStart && { onStart }),
    })
  const fileOf = async (name: string, content: string | Buffer) => {
    const path = join(directory, name)
    await writeFile(path, content)
    return path
  }
  const textOf = (name: string) => readFile(join(directory, name), 'utf8')

  it('writes one row per row of a CSV, with its columns, the answer, the error and the tokens', async () => {
    const rows = [
      '\uFEFFid,question,note',
      '1,"say ""hi"",\r\nplease",=1+1',
      '',
      '2,!echo fail=invalid_value,',
      '3,,none',
    ]
    const path = await fileOf('rows.csv', rows.join('\r\n'))
    const { code, err, lines } = await run([path, '--prompt-column', 'question', '--system', 'Be brief.'])
    expect([code, lines[0]]).toMatchObject([0, { status: 'completed', answered: 1, failed: 2 }])
    expect(err).toMatch(/^batch_\w+: 2 requests\n/)
    const written = (await textOf('rows.answers.csv')).split('\r\n')
    expect(written[0]).toBe('id,question,note,answer,error,input_tokens,output_tokens')
    expect(written.slice(1, 3).join('\n')).toBe('1,"say ""hi"",\nplease",=1+1,"say ""hi"",')
    expect(written[3]).toMatch(/^please",,\d+,\d+$/)
    expect(written.at(-3)).toMatch(/^2,!echo fail=invalid_value,,,"?invalid_value: /)
    expect(written.at(-2)).toMatch(/^3,,none,,"?empty_prompt: /)
  })

  it('finds the batch of the same rows again after Ctrl-C, and writes its output', async () => {
    const path = await fileOf('slow.csv', 'prompt\n!echo tokens=20 delay_ms=100\nquick\n')
    let child: ChildProcess | undefined
    const first = run([path], (started) => (child = started))
    const batchIds = async () => {
      const { data } = (await (await stack.get('/v1/batches')).json()) as { data: { id: string; status: string }[] }
      return data.filter(({ status }) => status === 'in_progress').map(({ id }) => id)
    }
    const [id = ''] = await until(async () => ((await batchIds()).length > 0 ? await batchIds() : undefined))
    child?.kill('SIGINT')
    const stopped = await first
    expect([stopped.code, stopped.err]).toEqual([130, expect.stringContaining('run the same command again')])
    const again = await run([path])
    expect([again.code, again.lines[0]]).toMatchObject([0, { batch: id, answered: 2 }])
    expect(again.err).toContain(`Continuing ${id}`)
    expect((await textOf('slow.answers.csv')).split('\r\n')).toHaveLength(4)
    const other = await run([path, '--max-tokens', '3'])
    expect(other.lines[0]?.batch).not.toBe(id)
    expect((await run([path, '--new'])).lines[0]?.batch).not.toBe(id)
    const listed = await sluice(['batches', '--limit', '2'], { env: env() })
    expect(listed.lines).toMatchObject([
      { status: 'completed', request_counts: { total: 2, completed: 2, failed: 0 } },
      { status: 'completed' },
    ])
  })

  it('cancels with --cancel-on-interrupt and writes the answers so far', async () => {
    const path = await fileOf('long.csv', 'prompt\n!echo tokens=1000 delay_ms=1000\nquick\n')
    const following = run([path, '--cancel-on-interrupt'], (child) => {
      void until(async () => {
        const jobs = (await (await stack.get('/v1/jobs?endpoint=/v1/batches&status=in_progress')).json()) as {
          data: { child_counts?: { completed: number } }[]
        }
        return jobs.data[0]?.child_counts?.completed === 1
      }).then(() => child.kill('SIGINT'))
    })
    const { code, lines } = await following
    expect([code, lines[0]]).toMatchObject([3, { status: 'cancelled', answered: 1, failed: 1 }])
    expect(await textOf('long.answers.csv')).toMatch(/delay_ms=1000,,batch_cancelled: .*\r\nquick,quick,,/)
  })

  it('reads TSV, semicolons, JSON Lines and a directory of texts', async () => {
    await run([await fileOf('a.tsv', 'id\tprompt\n1\tsay "x" now\n')])
    expect(await textOf('a.answers.tsv')).toContain('1\t"say ""x"" now"\t"say ""x"" now"\t\t')
    await run([await fileOf('b.csv', 'id;prompt\n1;a,b\n')])
    expect(await textOf('b.answers.csv')).toContain('1;"a,b";"a,b";;')
    // An answer is escaped if a spreadsheet would run it. The columns of the input are exact.
    await run([await fileOf('e.csv', 'prompt\n=1+1\n')])
    expect(await textOf('e.answers.csv')).toContain("\r\n=1+1,'=1+1,,")
    await run([await fileOf('c.jsonl', '{"prompt":"hi","__proto__":1,"answer":"old"}\n')])
    expect(await textOf('c.answers.jsonl')).toMatch(/^{"prompt":"hi","__proto__":1,"answer":"old","answer_2":"hi",/)
    await mkdir(join(directory, 'texts'))
    for (const name of ['b.txt', 'a.txt', '.hidden']) await fileOf(join('texts', name), `text of ${name}`)
    await run([join(directory, 'texts'), '--out', join(directory, 'd.csv')])
    expect((await textOf('d.csv')).split('\r\n').slice(1, 3)).toEqual([
      expect.stringMatching(/^a\.txt,text of a\.txt,,/),
      expect.stringMatching(/^b\.txt,text of b\.txt,,/),
    ])
  })

  it('gives the reason for each row without a result', async () => {
    const table = (await findTable(await fileOf('cut.csv', 'id,prompt\n1,asked\n2,\n'))) as Table
    await using files = await RunFiles.open()
    const out = join(directory, 'cut.answers.csv')
    const none = { promptColumn: undefined, system: undefined, maxTokens: undefined, temperature: undefined }
    const converted = await convertRows(table, { model: 'echo-1', out, ...none }, files.requests)
    const batches = { results: async () => ({ body: Readable.from([]) }) } as unknown as BatchesApi
    await writeOutput(batches, { id: 'batch_1' } as BatchView, table, converted, files, out)
    const [, asked, empty] = (await textOf('cut.answers.csv')).split('\r\n')
    expect(asked).toMatch(/^1,asked,,no_result: The batch ended before this request\./)
    expect(empty).toMatch(/^2,,,"empty_prompt: /)
  })

  it.each([
    ['the columns, if the column is missing', 'id,text\n1,x\n', "no column 'prompt'. The columns are 'id', 'text'."],
    ['a NUL byte', 'prompt\na\0b\n', 'NUL byte'],
    ['an encoding that is not UTF-8', Buffer.from('prompt\ncaf\xe9\n', 'latin1'), 'is not UTF-8'],
    ['the line with too many cells', 'id,prompt\n1,a\n\n2,a,b\n', 'line 4 has 3 columns, and the header has 2'],
    ['the line with an open quote', 'prompt\n"a\n', 'a quote is not closed'],
    ['a column that occurs twice', 'prompt,prompt\na,b\n', "the column 'prompt' twice"],
    ['a table without rows', 'prompt\n', 'has no rows'],
    ['the limit of rows', `prompt\n${'x\n'.repeat(50_001)}`, 'more than 50000 rows'],
  ])('refuses and names %s', async (_, content, problem) => {
    const { code, err } = await run([await fileOf('bad.csv', content)])
    expect([code, err]).toEqual([2, expect.stringContaining(problem)])
  })

  it('reports an unknown model, a missing model, and options of the other form', async () => {
    const path = await fileOf('ok.csv', 'prompt\nhello\n')
    const unknown = await run([path, '--model', 'none'])
    expect([unknown.code, unknown.err]).toEqual([1, expect.stringContaining("The model 'none' does not exist")])
    const missing = await sluice(['batch', path], { env: env() })
    expect([missing.code, missing.err]).toEqual([2, expect.stringContaining('--model')])
    expect((await run([path, '--follow'])).code).toBe(2)
    expect((await run([path, '--out', path])).err).toContain('--out must not be the input')
    await mkdir(join(directory, 'inputs'))
    await fileOf(join('inputs', 'a.txt'), 'hello')
    const inside = await run([join(directory, 'inputs'), '--out', join(directory, 'inputs', 'answers.csv')])
    expect([inside.code, inside.err]).toEqual([2, expect.stringContaining('must not be in the input directory')])
  })
})
