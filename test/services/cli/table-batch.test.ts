import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readFile, rm, stat, utimes, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { Answers } from '#services/cli/batches/answers.ts'
import { convertRows, RunFiles } from '#services/cli/batches/convert.ts'
import { findTable, type Table } from '#services/cli/batches/input.ts'
import { writeOutput } from '#services/cli/batches/write.ts'
import { embedderModel, startEmbedder, vectorOf } from '../../support/embeddings/embeddings.ts'
import { sluice } from '../../support/processes/sluice.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

describe('sluice batch with a table', () => {
  let stack: Stack
  let embedder: Awaited<ReturnType<typeof startEmbedder>>
  let directory: string
  beforeAll(async () => {
    embedder = await startEmbedder()
    stack = await startStack({
      models: [ECHO_MODEL, { ...ECHO_MODEL, id: 'echo-priced', price: { per_call: 0.01 } }, embedderModel(embedder)],
    })
    directory = await mkdtemp(join(tmpdir(), 'sluice-tables-'))
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    await embedder[Symbol.asyncDispose]()
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

  it('writes each row of the input file with its answer, error and token counts', async () => {
    const rows = [
      '\uFEFFid,question,note',
      '1,"say ""hi"",\r\nplease",=1+1',
      '',
      '2,!echo fail=invalid_value,',
      '3,,none',
    ]
    const path = await fileOf('rows.csv', rows.join('\r\n'))
    const { code, err, lines } = await run([path, '--prompt-column', 'question', '--system', 'Be brief.'])
    expect([code, lines[0]]).toMatchObject([0, { status: 'completed', answered: 1, failed: 1, skipped: 1 }])
    expect(err).toMatch(/^batch_\w+: 2 requests, 1 skipped \(empty prompt\)\n/)
    expect(err).toMatch(/\n {2}1 invalid_value, such as row 2: /)
    const { batch } = lines[0] as { batch: string }
    const summary =
      /(batch_\w+) (completed: 1 of 2 requests completed, 1 failed, total time .* input tokens, \d+ output .*)/
    const again = await run([path, '--prompt-column', 'question', '--system', 'Be brief.'])
    for (const shown of [err, again.err]) expect(summary.exec(shown)?.[1], 'the batch of the summary').toBe(batch)
    expect(lines[0]).toMatchObject({ seconds: expect.any(Number), usage: { input_tokens: expect.any(Number) } })
    expect(again.lines[0]).toEqual(lines[0])
    const written = (await textOf('rows.answers.csv')).split('\r\n')
    expect(written[0], 'header with the byte order mark of the input').toBe(
      '\uFEFFid,question,note,answer,error,finish_reason,input_tokens,output_tokens',
    )
    expect(written.slice(1, 3).join('\n')).toBe('1,"say ""hi"",\nplease",=1+1,"say ""hi"",')
    expect(written[3]).toMatch(/^please",,stop,\d+,\d+$/)
    expect(written.at(-3)).toMatch(/^2,!echo fail=invalid_value,,,"?invalid_value: /)
    expect(written.at(-2)).toMatch(/^3,,none,,"?empty_prompt: /)
  })

  it('runs only failed, changed and new rows with --retry-failed, and merges all answers', async () => {
    const rows = ['prompt', 'first', 'twice', '!echo fail=invalid_value', 'twice']
    const path = await fileOf('retry.csv', rows.join('\n'))
    expect((await run([path, '--strict'])).code).toBe(1)
    rows[3] = 'corrected'
    await fileOf('retry.csv', ['prompt', 'new', ...rows.slice(1)].join('\n'))
    const retried = await run([path, '--retry-failed'])
    const plan =
      '3 rows are already answered, 1 changed, 1 new: 2 rows will run. To run all rows: repeat the command with --new'
    expect(retried.err).toMatch(new RegExp(`^${plan}\\nbatch_\\w+: 2 requests\\n`))
    expect([retried.code, retried.lines[0]]).toMatchObject([0, { answered: 5, failed: 0 }])
    const answers = (await textOf('retry.answers.csv')).split('\r\n').map((line) => line.split(',').slice(0, 3).join())
    const texts = ['new', 'first', 'twice', 'corrected', 'twice']
    expect(answers.slice(1, 6)).toEqual(texts.map((text) => `${text},${text},`))
    const again = await run([path, '--retry-failed'])
    expect([again.code, again.err]).toEqual([0, expect.stringContaining('Every row has an answer')])
    const other = await run([path, '--retry-failed', '--max-tokens', '9'])
    expect([other.code, other.err]).toEqual([2, expect.stringContaining('No earlier batch')])
    const batch = String(retried.lines[0]?.batch)
    const joined = await sluice(['results', batch, '--csv', '--input', path], { env: env() })
    expect(joined.out).toMatch(/^prompt,answer,.*\r\nnew,new,,stop,.*\r\nfirst,,no_result: /)
  })

  it('runs only the changed and new rows of an edited table, without an option', async () => {
    const rows = ['id,prompt', '1,one', '2,two', '3,three']
    const path = await fileOf('edited.csv', rows.join('\n'))
    const run3 = await run([path, '--model', 'echo-priced'])
    rows[2] = '2,two and a half'
    await fileOf('edited.csv', [...rows, '4,four', '5,five'].join('\n'))
    const edited = await run([path, '--model', 'echo-priced'])
    expect(edited.err).toMatch(
      /^2 rows are already answered, 1 changed, 2 new: 3 rows will run, about \$0\.0300\. To run all rows: repeat the command with --new\nbatch_\w+: 3 requests\n/,
    )
    expect(edited.lines[0]).toMatchObject({ answered: 5, failed: 0, cost_usd: 0.06 })
    expect(edited.lines[0]?.batch).not.toBe(run3.lines[0]?.batch)
    const output = await textOf('edited.answers.csv')
    expect(output.split('\r\n').map((line) => line.split(',').slice(0, 3).join())).toEqual(
      expect.arrayContaining(['1,one,one', '2,two and a half,two and a half', '3,three,three', '5,five,five']),
    )
    const again = await run([path, '--model', 'echo-priced'])
    expect(again.err).toContain(`Continuing ${edited.lines[0]?.batch}`)
    expect([again.lines[0], await textOf('edited.answers.csv')]).toEqual([edited.lines[0], output])
    const printed = await sluice(['results', String(edited.lines[0]?.batch), '--csv'], { env: env() })
    expect(printed.out, 'later results of the batch of 3 rows').toBe(output)
    // Row 2 has its first content again, so its answer is from the first batch, not from the newest batch with this row.
    await fileOf('edited.csv', ['id,prompt', '1,one', '2,two', '3,three', '4,four', '5,five', '6,six'].join('\n'))
    const restored = await run([path, '--model', 'echo-priced'])
    expect(restored.err).toMatch(/\nbatch_\w+: 1 requests\n/)
    expect((await textOf('edited.answers.csv')).split('\r\n')[2]).toMatch(/^2,two,two,/)
    const later = await sluice(['results', String(restored.lines[0]?.batch), '--csv'], { env: env() })
    expect(later.out, 'row 2 without the answer to its other content').toMatch(/\r\n2,two,,no_result: /)
    expect(later.out).toMatch(/\r\n6,six,six,/)
  })

  it('gives each of several equal rows its own answer, even if one of the rows was edited', async () => {
    await using files = await RunFiles.open()
    const answers = new Answers(files.results, { valuesOf: (answer) => ({ values: [answer] }) })
    const line = (id: string, content: string) => {
      const body = { choices: [{ message: { content } }] }
      return Buffer.from(`${JSON.stringify({ custom_id: id, response: { status_code: 200, body } })}\n`)
    }
    // Rows 1 to 3 have the same request. An earlier batch answered rows 1 and 3, and the newest batch row 2.
    await answers.add('new', Readable.from([line('row-2', 'second')]), () => 'same')
    await answers.add('old', Readable.from([line('row-1', 'first'), line('row-3', 'third')]), () => 'same')
    const ids = (keys: readonly string[]) => answers.assign(keys).map((one) => one?.customId)
    expect(ids(['same', 'same', 'same']), 'equal rows').toEqual(['row-1', 'row-2', 'row-3'])
    expect(ids(['edited', 'same', 'same']), 'after row 1 was edited').toEqual([undefined, 'row-2', 'row-3'])
    expect(ids(['new', 'same', 'same', 'same']), 'after a row was added in front').toEqual([
      undefined,
      ...['row-1', 'row-2', 'row-3'],
    ])
  })

  it('uploads the table once, even for a repeated command, so that sluice results --csv can print the output later', async () => {
    const path = await fileOf('joined.csv', 'id;review\n1;great\n2;"!echo text=""Good!"""\n3;\n')
    for (const options of [
      ['--choices', 'good,bad'],
      ['--columns', 'mood:good|bad,score:integer'],
    ]) {
      const { lines } = await run([path, '--prompt', 'Rate: {review}', ...options])
      const batch = String(lines[0]?.batch)
      const printed = await sluice(['results', batch, '--csv'], { env: env() })
      expect([printed.out, printed.err]).toEqual([await textOf('joined.answers.csv'), ''])
      expect(printed.out).toContain('empty_prompt: ')
      const tables = async () => await (await stack.get('/v1/files?purpose=user_data')).json()
      const before = await tables()
      expect((await run([path, '--prompt', 'Rate: {review}', ...options])).lines[0]?.batch).toBe(batch)
      expect(await tables(), 'tables after the repeated command').toEqual(before)
    }
  })

  it('prints one row per text file of a directory, and prints only the requests if the table was deleted', async () => {
    await mkdir(join(directory, 'letters'))
    for (const [name, text] of [
      ['a.txt', 'text of a'],
      ['b.txt', ' '],
      ['c.txt', 'text of c'],
    ] as const) {
      await fileOf(join('letters', name), text)
    }
    const { lines } = await run([join(directory, 'letters'), '--out', join(directory, 'letters.csv')])
    const batch = String(lines[0]?.batch)
    const printed = await sluice(['results', batch, '--csv'], { env: env() })
    expect(printed.out).toBe(await textOf('letters.csv'))
    expect(printed.out).toMatch(/^file,answer,.*\r\na\.txt,text of a,.*\r\nb\.txt,,"?empty_prompt/)
    const { metadata, expires_at } = (await (await stack.get(`/v1/batches/${batch}`)).json()) as {
      metadata: Record<string, string>
      expires_at: number
    }
    const file = `/v1/files/${metadata.sluice_table_file}`
    const stored = (await (await stack.get(file)).json()) as { created_at: number; expires_at: number }
    const results = stored.created_at + 30 * 86_400
    expect(stored.expires_at, 'expiry of the table').toBeGreaterThan(results + 3_600)
    expect(stored.expires_at).toBeGreaterThan(expires_at)
    const headers = { authorization: `Bearer ${TEST_KEY}` }
    expect((await fetch(stack.url + file, { method: 'DELETE', headers })).status).toBe(200)
    const without = await sluice(['results', batch, '--csv'], { env: env() })
    expect(without.out).toMatch(/^custom_id,answer,.*\r\nrow-1,text of a,/)
    expect(without.err).toContain('The table of this batch was deleted or has expired')
  })

  it('runs the first rows with --limit, and only the remaining rows if the command is repeated without --limit', async () => {
    const path = await fileOf('trial.csv', 'prompt\none\n!echo fail=invalid_value\nthree\nfour\n')
    const trial = await run([path, '--model', 'echo-priced', '--new', '--limit', '2'])
    expect(trial.lines[0]).toMatchObject({ answered: 1, failed: 1 })
    expect(trial.err).toMatch(
      /\n2 of 4 rows have run, and the estimated cost of all rows is \$0\.0200\.\n.*1 of 2 rows failed.*\nTo run the other rows: sluice batch \S+trial\.csv --model echo-priced\n/,
    )
    expect(trial.err).not.toContain('--retry-failed')
    const [, others = ''] = /\nTo run the other rows: sluice batch (.*)\n/.exec(trial.err) ?? []
    const failing = await fileOf('failing.csv', 'prompt\n!echo fail=upstream_error\n!echo fail=invalid_value\n')
    const failed = await run([failing, '--model', 'echo-priced', '--limit', '1'])
    expect(failed.err).toMatch(
      /\n1 of 2 rows have run\.\nThe model fails; the prompt was not tried\. Try later .*: upstream_error/,
    )
    const [, again1 = ''] = /\nTo try the same rows again: sluice batch (.*)\n/.exec(failed.err) ?? []
    expect(await run(again1.split(' '))).toMatchObject({
      code: 1,
      err: expect.stringMatching(/^batch_\w+: 1 requests/),
    })
    expect((await textOf('trial.answers.csv')).split('\r\n')).toHaveLength(4)
    const printed = await sluice(['results', String(trial.lines[0]?.batch), '--csv'], { env: env() })
    expect(printed.out).toBe(await textOf('trial.answers.csv'))
    const all = await run(others.split(' '))
    const plan =
      /^1 row is already answered, 1 failed, 2 new: 3 rows will run, about \$0\.0300\. .*\nbatch_\w+: 3 requests\n/
    expect(all.err).toMatch(plan)
    expect(all.lines[0], 'cost of all answers').toMatchObject({ cost_usd: 0.03 })
    expect(all.err).toMatch(
      /\nIn total, with earlier runs: 3 answers from 2 batches, \d+ input tokens, \d+ output tokens, cost \$0\.0300\n/,
    )
    expect(all.lines[0]).toMatchObject({ answered: 3, failed: 1 })
    const again = await run([path, '--model', 'echo-priced'])
    expect([again.lines[0], again.err]).toMatchObject([all.lines[0], expect.stringContaining('Continuing')])
    const both = await run([path, '--limit', '2', '--retry-failed'])
    expect([both.code, both.err]).toEqual([2, expect.stringContaining('--limit or --retry-failed')])
  })

  it('begins CSV with a byte order mark for Excel if --bom is given', async () => {
    const path = await fileOf('umlauts.csv', 'prompt\nGrüße\n')
    const { lines } = await run([path, '--bom'])
    expect(await textOf('umlauts.answers.csv')).toMatch(/^\uFEFFprompt,answer,.*\r\nGrüße,Grüße,/)
    const batch = String(lines[0]?.batch)
    const printed = await sluice(['results', batch, '--csv', '--bom'], { env: env() })
    expect(printed.out).toBe(await textOf('umlauts.answers.csv'))
    const plain = await sluice(['results', batch, '--csv'], { env: env() })
    expect(plain.out).toMatch(/^prompt,/)
    const { code, err } = await sluice(['results', batch, '--bom'], { env: env() })
    expect([code, err]).toEqual([2, expect.stringContaining('--bom needs --csv')])
  })

  it('refuses more than 14 metadata pairs before the upload', async () => {
    const path = await fileOf('metadata.csv', 'prompt\nother\n!echo fail=invalid_value\n')
    const pairs = (count: number) => Array.from({ length: count }, (_, nth) => ['--metadata', `k${nth}=v`]).flat()
    const { lines } = await run([path, ...pairs(14)])
    const again = await sluice(['batch', String(lines[0]?.batch), '--retry-failed'], { env: env() })
    expect(again.lines[0]?.metadata).toMatchObject({ k13: 'v', sluice_retry_of: lines[0]?.batch })
    expect(Object.keys(again.lines[0]?.metadata as object)).toHaveLength(16)
    const refused = await run([path, ...pairs(15)])
    expect([refused.code, refused.err]).toEqual([2, expect.stringContaining('at most 14 keys')])
  })

  it('repeats the failed requests of a batch that is given by its id', async () => {
    const path = await fileOf('again.csv', 'prompt\nfine\n!echo fail=invalid_value\n')
    const { lines } = await run([path])
    const id = String(lines[0]?.batch)
    const again = await sluice(['batch', id, '--retry-failed'], { env: env() })
    expect(again.err).toContain(`repeats 1 request of ${id}: the failed ones`)
    expect(again.lines[0]).toMatchObject({ metadata: { name: 'again.csv', sluice_retry_of: id } })
    const retried = String(again.lines[0]?.id)
    const jsonl = await sluice(['results', retried], { env: env() })
    expect(jsonl.lines.map(({ custom_id }) => custom_id)).toEqual(['row-1', 'row-2'])
    const csv = await sluice(['results', retried, '--csv'], { env: env() })
    expect(csv.out).toMatch(/\r\nfine,fine,,stop,.*\r\n!echo fail=invalid_value,,invalid_value/)
    const errors = await sluice(['results', retried, '--errors'], { env: env() })
    expect(errors.lines.map(({ custom_id }) => custom_id)).toEqual(['row-2'])
    const misplaced = await sluice(['batch', id, '--retry-failed', '--max-tokens', '9'], { env: env() })
    expect([misplaced.code, misplaced.err]).toEqual([2, expect.stringContaining('--max-tokens cannot change a batch')])
    const request = { method: 'POST', url: '/v1/chat/completions', body: { model: 'none', messages: [] } }
    const invalid = await fileOf('invalid.jsonl', JSON.stringify({ custom_id: 'a', ...request }))
    const refused = await sluice(['batch', invalid, '--follow'], { env: env() })
    const failed = await sluice(['batch', String(refused.lines[0]?.id), '--retry-failed'], { env: env() })
    expect([failed.code, failed.err]).toEqual([1, expect.stringMatching(/failed, so no request ran.\n.*request 1: /s)])
  })

  it('counts invalid choices in every summary, and repeats the rows with invalid choices of a batch that is given by its id', async () => {
    const path = await fileOf('moods.csv', 'review\ngood\n!echo text=unknown\n')
    const { lines, err } = await run([path, '--prompt', '{review}', '--choices', 'good,bad'])
    const id = String(lines[0]?.batch)
    expect(lines[0]).toMatchObject({ answered: 1, failed: 1 })
    expect(err).toContain('2 of 2 requests completed, 0 failed, 1 with an invalid answer')
    const trial = await run(
      [await fileOf('trial.csv', 'review\n!echo text=unknown\ngood\n'), '--prompt', '{review}'].concat(
        '--choices',
        'good,bad',
        '--limit',
        '1',
      ),
    )
    expect(trial.err).toContain("The row had an invalid answer, such as 'unknown'. First correct the prompt")
    const whole = await run([join(directory, 'trial.csv'), '--prompt', '{review}', '--choices', 'good,bad'])
    expect(whole.err).toContain('Warning: The row of ')
    const batch = await (await stack.get(`/v1/batches/${id}`)).json()
    expect(batch).toMatchObject({ request_counts: { completed: 2, failed: 0 }, invalid_answers: 1 })
    const got = await sluice(['get', id], { env: { ...env(), FORCE_COLOR: '0' } })
    expect(got.out + got.err).toMatch(/invalid_answers|1 with an invalid answer/)
    const again = await sluice(['batch', id, '--retry-failed'], { env: env() })
    expect(again.err).toContain(`repeats 1 request of ${id}: the failed ones and those with an invalid answer`)
    expect(again.lines[0]).toMatchObject({ metadata: { sluice_retry_of: id } })
    const csv = await sluice(['results', String(again.lines[0]?.id), '--csv'], { env: env() })
    expect(csv.out).toMatch(/^review,answer,.*\r\ngood,good,,stop,.*\r\n!echo text=unknown,,invalid_answer/)
  })

  it('fills a prompt template, and writes validated choices and fields as columns', async () => {
    const reviews = ['id,review', '1,great', '2,"!echo text=""Good!"""', '3,"!echo text=unknown"']
    const path = await fileOf('reviews.csv', reviews.join('\n'))
    const chosen = await run([path, '--prompt', '{review}', '--choices', 'good,bad'])
    expect(chosen.lines[0]).toMatchObject({ answered: 2, failed: 1, failures: [{ code: 'invalid_answer', row: 3 }] })
    expect((await textOf('reviews.answers.csv')).split('\r\n').slice(1, 4)).toEqual([
      expect.stringMatching(/^1,great,good,,stop/),
      expect.stringMatching(/^2,.*,good,,stop/),
      expect.stringMatching(/^3,.*,,invalid_answer: The answer is not one of the choices: unknown,stop,.*,unknown$/),
    ])
    const fields = await run([path, '--prompt', 'Rate {review} {{1}}', '--columns', 'mood:good|bad,score:integer'])
    expect(fields.lines[0]).toMatchObject({ answered: 3, failed: 0 })
    const [head, first] = (await textOf('reviews.answers.csv')).split('\r\n')
    expect(head).toBe('id,review,mood,score,error,finish_reason,input_tokens,output_tokens,invalid_answer')
    expect(first).toMatch(/^1,great,good,\d+,,stop/)
    const unknown = await run([path, '--prompt', '{text}'])
    expect([unknown.code, unknown.err]).toEqual([2, expect.stringContaining("no column 'text'. The columns are 'id'")])
  })

  it('writes the embedding vector of the text in a column', async () => {
    const path = await fileOf('texts.csv', 'id,text\n1,some text\n2,\n')
    const out = join(directory, 'vectors.jsonl')
    const { lines } = await run([path, '--model', 'embed-1', '--embed-column', 'text', '--out', out])
    expect(lines[0]).toMatchObject({ answered: 1, failed: 0, skipped: 1 })
    const [row = ''] = (await textOf('vectors.jsonl')).split('\n')
    const { id, embedding, error } = JSON.parse(row)
    expect([id, Float32Array.from(embedding), error]).toEqual(['1', vectorOf('some text'), ''])
  })

  it('reports answers that the token limit truncated', async () => {
    const { err, lines } = await run([await fileOf('cut.csv', 'prompt\na b c d e\nf\n'), '--max-tokens', '2'])
    expect(err).toContain(
      '1 answers were cut at 2 tokens (column finish_reason). For longer answers: repeat the command with a larger --max-tokens',
    )
    expect(lines[0]).toMatchObject({ answered: 2, cut: 1 })
    expect(await textOf('cut.answers.csv')).toMatch(/,,length,/)
  })

  it('resumes the batch of the same rows after Ctrl-C, and writes the output of the batch', async () => {
    const path = await fileOf('slow.csv', 'prompt\n!echo tokens=20 delay_ms=100\nquick\n')
    const output = join(directory, 'slow.answers.csv')
    let child: ChildProcess | undefined
    const first = run([path, '--key', TEST_KEY, '--new'], (started) => (child = started))
    const batchIds = async () => {
      const { data } = (await (await stack.get('/v1/batches')).json()) as { data: { id: string; status: string }[] }
      return data.filter(({ status }) => status === 'in_progress').map(({ id }) => id)
    }
    const [id = ''] = await until(async () => ((await batchIds()).length > 0 ? await batchIds() : undefined))
    child?.kill('SIGINT')
    const stopped = await first
    const command = `sluice batch ${path} --model echo-1`
    expect([stopped.code, stopped.err]).toEqual([
      130,
      expect.stringContaining(`${output} does not exist yet. To continue and write the file: ${command}\n`),
    ])
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

  it('prints the output file and the command that resumes if Ctrl-C interrupts the upload', async () => {
    const path = await fileOf("it's.csv", 'prompt\nx\n')
    const output = await fileOf('old.csv', 'old')
    let child: ChildProcess | undefined
    const server = createServer((request, response) => {
      if (request.method === 'POST') child?.kill('SIGINT')
      else response.end('{"object":"list","data":[],"has_more":false}')
    }).listen(0, '127.0.0.1')
    onTestFinished(() => void server.close().closeAllConnections())
    await once(server, 'listening')
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const args = [path, '--prompt', 'Say {prompt}', `--key=${TEST_KEY}`, '--out', output, '--url', url]
    const { code, err } = await run(args, (started) => (child = started))
    const quoted = `'${directory}/it'\\''s.csv'`
    expect([code, err]).toEqual([
      130,
      `Stopped before the rows were submitted.\n${output} still has its earlier content. To continue and write the file: sluice batch ${quoted} --prompt 'Say {prompt}' --out ${output} --url ${url} --model echo-1\n`,
    ])
  })

  it('with --cancel-on-interrupt cancels the batch after Ctrl-C and writes the answers so far', async () => {
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
    expect(await textOf('long.answers.csv')).toMatch(/delay_ms=1000,,batch_cancelled: .*\r\nquick,quick,,stop,/)
  })

  it('reads tables with tabs or semicolons, JSON Lines, and a directory of text files', async () => {
    await run([await fileOf('a.tsv', 'id\tprompt\n1\tsay "x" now\n')])
    expect(await textOf('a.answers.tsv')).toContain('1\t"say ""x"" now"\t"say ""x"" now"\t\t')
    await run([await fileOf('b.csv', 'id;prompt\n1;a,b\n')])
    expect(await textOf('b.answers.csv')).toContain('1;"a,b";"a,b";;')
    // A spreadsheet would run a cell that begins with `=` as a formula. An answer is therefore escaped with an apostrophe, but the columns
    // of the input are copied unchanged.
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
    const table = (await findTable(await fileOf('none.csv', 'id,prompt\n1,asked\n2,\n'))) as Table
    await using files = await RunFiles.open()
    const out = join(directory, 'none.answers.csv')
    const unset = { promptColumn: undefined, prompt: undefined, embedColumn: undefined, system: undefined }
    const rest = { maxTokens: undefined, temperature: undefined, choices: undefined, schema: undefined }
    const converted = await convertRows(table, { model: 'echo-1', ...unset, ...rest }, true, files.requests)
    const written = await writeOutput(table, converted, new Answers(files.results, converted.task), out)
    expect(written).toMatchObject({ answered: 0, failed: 1, skipped: 1 })
    const [, asked, empty] = (await textOf('none.answers.csv')).split('\r\n')
    expect(asked).toMatch(/^1,asked,,no_result: The batch has no result for this row\./)
    expect(empty).toMatch(/^2,,,"empty_prompt: /)
    const { mtime } = await stat(table.path)
    await fileOf('none.csv', 'id,prompt\n1,other\n2,\n')
    await utimes(table.path, mtime, mtime)
    const answers = new Answers(files.results, converted.task)
    await expect(writeOutput(table, converted, answers, out)).rejects.toThrow('changed while the batch ran')
    await fileOf('none.csv', 'id,prompt\n1,asked\n2,\n')
    expect(await writeOutput(table, converted, answers, out)).toMatchObject({ failed: 1, skipped: 1 })
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
  ])('refuses the input and names %s', async (_, content, problem) => {
    const { code, err } = await run([await fileOf('bad.csv', content)])
    expect([code, err]).toEqual([2, expect.stringContaining(problem)])
  })

  it.each([
    [['missing.csv'], 'missing.csv does not exist.'],
    [['ok.csv', '--out', 'none/answers.csv'], 'none does not exist.\nCreate the folder'],
    [['ok.csv', '--out', 'answers.xlsx'], "--out must end in .csv, .tsv or .jsonl; got '"],
    [
      ['ok.csv', '--window', '5'],
      "--window must be a number of seconds, minutes or hours, such as 90m or 24h; got '5'.",
    ],
  ])('refuses %j before the upload', async (given, problem) => {
    await fileOf('ok.csv', 'prompt\nhello\n')
    const [name = '', option, value = ''] = given
    const path = option === '--out' ? join(directory, value) : value
    const { code, err } = await run([join(directory, name), ...(option === undefined ? [] : [option, path])])
    expect([code, err]).toEqual([2, expect.stringContaining(problem)])
    expect(err).not.toContain('batch_')
  })

  it('reports an unknown model, a missing model, unsupported options, and an output path that is part of the input', async () => {
    const path = await fileOf('ok.csv', 'prompt\nhello\n')
    const unknown = await run([path, '--model', 'none'])
    expect([unknown.code, unknown.err]).toEqual([5, expect.stringMatching(/^The model 'none' does not exist/)])
    const missing = await sluice(['batch', path, '--prompt-column', 'prompt'], { env: env() })
    expect([missing.code, missing.err]).toEqual([2, expect.stringContaining('--model is missing')])
    expect((await run([path, '--follow'])).code).toBe(2)
    expect((await run([path, '--out', path])).err).toContain('--out must not be the input')
    await mkdir(join(directory, 'inputs'))
    await fileOf(join('inputs', 'a.txt'), 'hello')
    const inside = await run([join(directory, 'inputs'), '--out', join(directory, 'inputs', 'answers.csv')])
    expect([inside.code, inside.err]).toEqual([2, expect.stringContaining('must not be in the input directory')])
  })
})
