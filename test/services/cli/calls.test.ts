import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { asTyped } from '#services/cli/text/output.ts'
import { type RunOptions, sluice } from '../../support/processes/sluice.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

describe('sluice', () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await startStack()
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  const run = (args: string[], options: RunOptions = {}) =>
    sluice(args, { ...options, env: { SLUICE_URL: stack.url, SLUICE_API_KEY: TEST_KEY } })

  it('whoami shows the project, scopes and limits of the key', async () => {
    const { code, lines } = await run(['whoami'])
    expect([code, lines[0]]).toMatchObject([0, { id: 'key_env', project: 'key_env', scopes: ['calls'] }])
    expect((await run(['whoami', '-o', 'table'])).out).toMatch(/^service +http.*\nkey +key_env\nproject +key_env\n/)
  })

  it('models lists the models of a capability as table, JSON or CSV', async () => {
    const { lines } = await run(['models', '--capability', 'chat'])
    expect(lines).toMatchObject([{ id: 'echo-1', capabilities: expect.arrayContaining(['chat']) }])
    expect((await run(['models', '-o', 'table'])).out).toMatch(/^id +capabilities.*\necho-1 +chat, /)
    const [head = '', row = ''] = (await run(['models', '--output', 'csv'])).out.split('\r\n')
    expect(head.split(',').slice(0, 4)).toEqual(['id', 'context_length', 'max_output_tokens', 'capabilities'])
    expect(row).toMatch(/^echo-1,\d*,\d*,"chat;[^"]*",,$/)
    expect((await run(['models', '--capability', 'none'])).out).toBe('')
  })

  it('chat streams the answer to a prompt from an argument, from stdin, or from both', async () => {
    expect(await run(['chat', 'Hello there', '-o', 'table'])).toMatchObject({ code: 0, out: 'Hello there\n' })
    expect((await run(['chat', '-o', 'table'], { stdin: 'from stdin\n' })).out).toBe('from stdin\n')
    expect((await run(['chat', 'first', '-o', 'table'], { stdin: 'second' })).out).toBe('first\n\nsecond\n')
    const { lines } = await run(['chat', 'Hello', '--model', 'echo-1', '--max-tokens', '3'])
    expect(lines).toMatchObject([{ object: 'chat.completion', choices: [{ message: { content: 'Hello' } }] }])
  })

  it('chat sends its prompt argument even if stdin is an open pipe without text', async () => {
    const onStart: RunOptions['onStart'] = ({ stdin }) => {
      if (stdin) stdin.end = () => stdin
    }
    const { code, out, err } = await run(['chat', 'Hello', '-o', 'table'], { onStart })
    expect([code, out, err]).toEqual([
      0,
      'Hello\n',
      expect.stringContaining('To wait for the text: add the argument -'),
    ])
    expect((await run(['chat', 'first', '-', '-o', 'table'], { stdin: 'second' })).out).toBe('first\n\nsecond\n')
  })

  it.each([
    { failure: 'a call that fails late', body: '{"error":{"message":"The model server failed."}}', isCut: false },
    { failure: 'a connection that breaks in the body', body: '{"choices":', isCut: true },
  ])('chat in a pipe reports $failure in one sentence with exit code 4', async ({ body, isCut }) => {
    const server = createServer((_, res) => {
      res.writeHead(200, { 'content-type': 'application/json' })
      if (isCut) res.write(body, () => res.destroy())
      else res.end(body)
    }).listen(0, '127.0.0.1')
    onTestFinished(() => void server.close().closeAllConnections())
    await once(server, 'listening')
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    const { code, out, err } = await run(['chat', 'Hello', '--model', 'm', '--url', url])
    expect([code, out]).toEqual([4, ''])
    expect(err).toMatch(isCut ? /^The connection to the service broke: .+\n$/ : /^The model server failed\.\n$/)
  })

  it('chat cancels its call on Ctrl-C with exit code 130', async () => {
    const onStart: RunOptions['onStart'] = (child) => {
      child.stdout?.once('data', () => child.kill('SIGINT'))
    }
    const { code, err } = await run(['chat', '!echo tokens=100000 delay_ms=50', '-o', 'table'], { onStart })
    expect([code, err]).toEqual([130, 'The answer was cancelled.\n'])
    const running = async () => /sluice_attached_jobs\{pool="inference",state="running"\} 0/.test(await metrics())
    await until(running)
  })

  const metrics = async () => await (await stack.get('/metrics')).text()

  it.each([
    [['chat', '-o', 'csv', 'x'], '--output csv needs a command that prints a list.'],
    [['models', '-o', 'xml'], "--output must be table, json or csv; got 'xml'."],
    [['models', '--json', '-o', 'csv'], 'Use either --json or --output csv, not both.'],
    [['chat'], 'Missing PROMPT'],
    [['chat', 'x', '--temperature', '3'], "--temperature must be a number from 0 to 2; got '3'."],
    [['btach'], "Unknown command 'btach'.\nDid you mean batch? For all commands: sluice --help\n"],
    [['requests', 'get', 'x'], "Unknown command 'requests'.\nDid you mean logs? For all commands: sluice --help\n"],
    [['jobs', '--modle', 'x'], 'Did you mean --model?'],
  ])('%j is refused with %j', async (args, message) => {
    const { code, err } = await run(args)
    expect([code, err]).toEqual([2, expect.stringContaining(message)])
  })

  it('jobs prints CSV with one column per field of the first job', async () => {
    await run(['submit', '--model', 'echo-1', '--prompt', 'Hi', '--metadata', 'team=a'])
    const [head = '', ...rows] = (await run(['jobs', '-o', 'csv'])).out.trim().split('\r\n')
    expect(head.split(',')).toEqual(expect.arrayContaining(['id', 'status', 'queue.position', 'metadata.team']))
    expect(rows).toHaveLength(1)
  })
})

it.each([
  ['For help: sluice jobs --help', 'For help: npx sluice jobs --help'],
  ['`sluice jobs` lists jobs', '`npx sluice jobs` lists jobs'],
  ['npx sluice keys create', 'npx sluice keys create'],
  ['services/cli/sluice keys', 'services/cli/sluice keys'],
])('if the command was started by npx, the text %j is printed as %j', (text, expected) => {
  expect(asTyped(text, true)).toBe(expected)
  expect(asTyped(text, false)).toBe(text)
})
