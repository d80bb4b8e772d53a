import { expect, inject, it } from 'vitest'
import { CODE, framesOf, run } from '../../support/sandbox/code-calls.ts'
import { describeCode, untilBusy } from '../../support/sandbox/code-service.ts'
import { until } from '../../support/stack.ts'
import { openWs } from '../../support/ws.ts'

const PLOT = `
import matplotlib.pyplot as plt
plt.plot([1, 4, 9])
plt.show()
plt.figure()
plt.bar(['a', 'b'], [3, 5])
plt.show()
`
/** Python code that draws random noise. Noise is incompressible, so the PNG file has more than half a megabyte. */
const NOISE = `
import matplotlib.pyplot as plt
import numpy as np
figure = plt.figure(figsize=(8, 8))
figure.figimage(np.random.default_rng(1).integers(0, 255, (800, 800, 3), dtype=np.uint8))
plt.show()
`
const SLEEP = "print('first')\nimport time\ntime.sleep(100)"

interface WireJob {
  readonly id: string
  readonly status: string
  readonly result: unknown
}

describeCode('the code endpoint', inject('kafka'), (stack) => {
  const submit = async (code: string, more: object = {}): Promise<string> => {
    const headers = { prefer: 'respond-async' }
    const response = await stack().post(CODE, { code, lang: 'python', ...more }, { headers })
    expect(response.status).toBe(202)
    return ((await response.json()) as WireJob).id
  }
  const jobOf = async (id: string, wait = 30) =>
    (await (await stack().get(`/v1/jobs/${id}?wait=${wait}`)).json()) as WireJob

  it('a code run returns the output of the program', async () => {
    const code = "import sys\nprint('out', 6 * 7, 'ß')\nprint('note', file=sys.stderr)"
    expect(await run(stack(), code)).toEqual({
      success: true,
      stdout: 'out 42 ß\n',
      stderr: 'note\n',
      exit_code: 0,
      execution_time: expect.any(Number),
      security_checked: true,
      violations: [],
      plots: [],
    })
  })

  it('a code run can import each allowed library', async () => {
    const libraries = ['numpy', 'pandas', 'scipy', 'matplotlib.pyplot', 'seaborn', 'json']
    const code = `${libraries.map((name) => `import ${name}`).join('\n')}\nprint(numpy.arange(4).sum())`
    expect(await run(stack(), code, { libraries })).toMatchObject({ success: true, stdout: '6\n', stderr: '' })
  })

  it('a code run that fails returns the output of the program, and then the error with its traceback', async () => {
    const result = await run(stack(), "print('before')\n1 / 0")
    expect(result).toMatchObject({ success: true, exit_code: 1, stdout: 'before\n', violations: [] })
    expect(result.stderr).toMatch(/^Traceback[\s\S]*line 2[\s\S]*ZeroDivisionError: division by zero\n$/)
  })

  it('a program with a syntax error is not run, and the response contains the error', async () => {
    const result = await run(stack(), "print('before')\nif:\n  pass")
    expect(result).toMatchObject({ success: true, exit_code: 1, stdout: '', violations: [], plots: [] })
    expect(result.stderr).toMatch(/line 2[\s\S]*SyntaxError/)
  })

  it('a program that violates the security rules is not run, and the response names the violation', async () => {
    expect(await run(stack(), "print('before')\nimport os\nos.listdir('/')")).toMatchObject({
      success: false,
      exit_code: -1,
      stdout: '',
      stderr: 'Security violations were detected: the code was not executed.\n',
      violations: [expect.stringMatching(/line 2.*os/)],
    })
  })

  it('a code run that exceeds its timeout returns the output until then, and then a timeout error', async () => {
    const result = await run(stack(), SLEEP, { timeout: 1 })
    expect(result).toMatchObject({
      success: false,
      exit_code: -1,
      stdout: 'first\n',
      stderr: 'Execution failed: the timeout of 1 second was exceeded.\n',
      violations: [],
    })
    expect(result.execution_time).toBeGreaterThanOrEqual(1)
  })

  it('a code run returns the exit status of the program', async () => {
    expect(await run(stack(), 'import sys\nsys.exit(3)')).toMatchObject({ success: true, exit_code: 3, violations: [] })
  })

  it('a code run reports exhausted memory as a MemoryError that the program may handle', async () => {
    const code =
      "try:\n  x = bytearray(900_000_000)\nexcept MemoryError:\n  print('too much')\ny = bytearray(900_000_000)"
    const result = await run(stack(), code)
    expect(result).toMatchObject({ success: true, exit_code: 1, stdout: 'too much\n' })
    expect(result.stderr).toMatch(/MemoryError\n$/)
  })

  it('a code run returns each figure that is open when the program calls show()', async () => {
    const { plots, exit_code } = await run(stack(), PLOT)
    expect(exit_code).toBe(0)
    expect(plots.map(({ filename, format }) => `${filename} ${format}`)).toEqual(['plot_1.png png', 'plot_2.png png'])
    for (const { content_base64 } of plots) {
      expect(Buffer.from(content_base64, 'base64').subarray(1, 4).toString()).toBe('PNG')
    }
  })

  it('a code run returns output up to the size limit, and a plot larger than a Kafka record', async () => {
    const { stdout, plots } = await run(stack(), `print('x' * 2_000_000)\n${NOISE}`)
    expect(stdout.startsWith('x'.repeat(1_000_000))).toBe(true)
    expect(stdout.split('\n').at(-2)).toMatch(/truncated/)
    const png = Buffer.from(plots[0]?.content_base64 ?? '', 'base64')
    expect(png.length).toBeGreaterThan(512 * 1024)
    // IEND is the last chunk of every PNG file. If its first occurrence is at the end, then the end of the file is not lost or duplicated.
    expect(png.indexOf('IEND')).toBe(png.length - 8)
  })

  it('a code run streams output and plots, then the complete result', async () => {
    const body = { code: `for i in range(3):\n  print(i)\n${PLOT}`, lang: 'python', stream: true }
    const response = await stack().post(CODE, body)
    expect(response.headers.get('content-type')).toContain('text/event-stream')
    const frames = framesOf(await response.text()) as Record<string, never>[]
    const texts = frames.filter(({ type }) => type === 'code.output.delta')
    expect(texts.map(({ text }) => text).join('')).toBe('0\n1\n2\n')
    expect(texts.every(({ stream }) => stream === 'stdout')).toBe(true)
    const plots = frames.filter(({ type }) => type === 'code.plot').map(({ plot }) => plot)
    expect(plots).toMatchObject([{ filename: 'plot_1.png' }, { filename: 'plot_2.png' }])
    expect(frames.slice(-2)).toEqual([
      { type: 'code.completed', result: expect.objectContaining({ success: true, stdout: '0\n1\n2\n', plots }) },
      '[DONE]',
    ])
  })

  it('a code run streams output while the program runs, and ends if the caller disconnects', async () => {
    const leave = new AbortController()
    const body = { code: SLEEP, lang: 'python', timeout: 100, stream: true }
    const response = await stack().post(CODE, body, { signal: leave.signal })
    const { value } = (await response.body?.getReader().read()) ?? {}
    expect(Buffer.from(value ?? []).toString()).toContain('"text":"first')
    await untilBusy(stack(), 1)
    leave.abort()
    await untilBusy(stack(), 0)
  })

  it('a code run ends if the caller disconnects while waiting for the complete result', async () => {
    const leave = new AbortController()
    run(stack(), SLEEP, { timeout: 100 }, { signal: leave.signal }).catch(() => {})
    await untilBusy(stack(), 1)
    leave.abort()
    await untilBusy(stack(), 0)
  })

  it('a code run in a durable job sends the output as events and stores the result', async () => {
    const id = await submit("import sys\nprint('one')\nprint('two', file=sys.stderr)", { stream: true })
    const { status, result } = await jobOf(id)
    expect(status).toBe('completed')
    expect(result).toMatchObject({ success: true, stdout: 'one\n', stderr: 'two\n' })
    const text = await (await stack().get(`/v1/jobs/${id}/events`)).text()
    const events = framesOf(text) as { type: string; chunk: Record<string, unknown> }[]
    const chunks = events.filter(({ type }) => type === 'job.output.delta').map(({ chunk }) => chunk)
    const said = (stream: string) =>
      chunks
        .filter((chunk) => chunk.stream === stream)
        .map((chunk) => chunk.text)
        .join('')
    expect([said('stdout'), said('stderr')]).toEqual(['one\n', 'two\n'])
    expect(chunks.at(-1)).toEqual({ type: 'code.completed', result })
    expect(await (await stack().get(`/v1/jobs/${id}/result`)).json()).toEqual(result)
  })

  it('a code run in a durable job stores plots, including a plot larger than a Kafka record', async () => {
    const id = await submit(NOISE, { stream: true })
    const { plots } = (await jobOf(id)).result as { plots: object[] }
    expect(plots).toMatchObject([{ filename: 'plot_1.png' }])
    const text = await (await stack().get(`/v1/jobs/${id}/events`)).text()
    const chunks = (framesOf(text) as { chunk?: object }[]).map(({ chunk }) => chunk)
    expect(chunks).toContainEqual({ type: 'code.plot', plot: plots[0] })
  })

  it('a code run in a durable job ends if the job is cancelled', async () => {
    const id = await submit(SLEEP, { timeout: 100, stream: true })
    await untilBusy(stack(), 1)
    expect((await stack().post(`/v1/jobs/${id}/cancel`, {})).status).toBe(200)
    await untilBusy(stack(), 0)
    expect(await jobOf(id)).toMatchObject({ status: 'cancelled', result: null })
  })

  it('a code run in a durable job ends at the deadline of the job', async () => {
    const body = { code: SLEEP, lang: 'python', timeout: 100 }
    const asked = { endpoint: CODE, body, expires_after_seconds: 2 }
    const { id } = (await (await stack().post('/v1/jobs', asked)).json()) as WireJob
    await untilBusy(stack(), 1)
    await untilBusy(stack(), 0)
    expect(await jobOf(id)).toMatchObject({ status: 'failed', error: { code: 'timeout' } })
    const again = await stack().post(`/v1/jobs/${id}/redrive`, {})
    expect(again.status).toBe(202)
    await stack().post(`/v1/jobs/${((await again.json()) as WireJob).id}/cancel`, {})
    await untilBusy(stack(), 0)
  })

  it('a code run over a WebSocket streams its output, and ends if the client cancels the request', async () => {
    using client = await openWs(stack())
    client.send({ type: 'request.create', id: 'r1', endpoint: CODE, body: { code: 'print(1)', lang: 'python' } })
    expect(await client.end('r1')).toMatchObject({ type: 'request.completed', status: 200, body: null })
    const events = client.about('r1').flatMap((frame) => (frame.type === 'request.event' ? [frame.event] : []))
    expect(events.at(-1)).toMatchObject({ type: 'code.completed', result: { stdout: '1\n' } })
    const body = { code: SLEEP, lang: 'python', timeout: 100 }
    client.send({ type: 'request.create', id: 'r2', endpoint: CODE, body })
    await until(() => client.about('r2').some(({ type }) => type === 'request.event'))
    client.send({ type: 'request.cancel', id: 'r2' })
    expect(await client.end('r2')).toMatchObject({ type: 'request.cancelled' })
    await untilBusy(stack(), 0)
  })
})
