/*
 * Tests of maps whose keys are chosen by callers, such as metadata. These maps must accept each key that JSON permits, including names of
 * inherited members such as `__proto__`, without side effects.
 */

import { readdir, readFile } from 'node:fs/promises'
import { describe, expect, it, test } from 'vitest'
import { z } from 'zod'
import { recordOf } from '#schemas/lib/record.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import { CHAT, errorOf, type Service, say, startService } from '../../support/jobs/api.ts'

const NAMES = ['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'valueOf', '', 'a]b', '😀'.repeat(64)]

/** Returns an object with one own property. JSON.parse creates an own property even for the name `__proto__`. */
const mapOf = (name: string, value: unknown): unknown =>
  JSON.parse(`{${JSON.stringify(name)}:${JSON.stringify(value)}}`)

// biome-ignore lint/suspicious/noExplicitAny: responses of several endpoints
const jsonOf = async (response: Response): Promise<any> => await response.json()

const inAnHour = () => Math.floor(Date.now() / 1_000) + 3_600

/** For each endpoint that accepts metadata: a function that sends a valid request with the given metadata. */
const PLACES: Readonly<Record<string, (service: Service, metadata: unknown) => Promise<Response>>> = {
  'POST /v1/jobs': (service, metadata) =>
    service.post('/v1/jobs', { endpoint: CHAT, body: say('x'), run_at: inAnHour(), metadata }),
  'x-job-metadata': (service, metadata) => {
    const text = Buffer.from(JSON.stringify(metadata)).toString('latin1')
    return service.post(CHAT, say('x'), { headers: { prefer: 'respond-async', 'x-job-metadata': text } })
  },
  'POST /v1/conversations': (service, metadata) => service.post('/v1/conversations', { metadata }),
  'POST /v1/conversations/{id}': async (service, metadata) => {
    const { id } = await jsonOf(await service.post('/v1/conversations', {}))
    return await service.post(`/v1/conversations/${id}`, { metadata })
  },
  'POST /v1/responses': (service, metadata) =>
    service.post('/v1/responses', { model: 'echo-1', input: 'x', background: true, metadata }),
  'a stored chat completion': (service, metadata) => service.post(CHAT, say('x', { store: true, metadata })),
}

describe('metadata', () => {
  test.each(Object.keys(PLACES))(
    'of %s accepts any key, but only short strings as values',
    async (place) => {
      await using service = await startService()
      const send = PLACES[place] ?? expect.fail()
      for (const name of NAMES) {
        const response = await send(service, mapOf(name, 'x'))
        expect([name, response.ok]).toEqual([name, true])
        const answer = await jsonOf(response)
        const path = `${CHAT}/${answer.id}`
        const { metadata } = answer.metadata ? answer : await jsonOf(await service.get(path))
        expect([name, Object.hasOwn(metadata, name), metadata[name]]).toEqual([name, true, 'x'])
        for (const value of [{ a: 'b' }, 1, 'x'.repeat(513)]) {
          const refused = await send(service, mapOf(name, value))
          expect([name, value, refused.status]).toEqual([name, value, 400])
        }
      }
      expect(Object.keys(Object.prototype)).toEqual([])
    },
    120_000,
  )

  it('with any key can filter the job list', async () => {
    await using service = await startService()
    const body = { endpoint: CHAT, body: say('x'), run_at: inAnHour() }
    for (const name of [...NAMES, '[', ']', 'a&b=c', 'é', '\n']) {
      const { id } = await jsonOf(await service.post('/v1/jobs', { ...body, metadata: mapOf(name, 'x') }))
      const found = await jsonOf(await service.get(`/v1/jobs?${encodeURIComponent(`metadata[${name}]`)}=x`))
      expect([name, found.data?.map((job: { id: string }) => job.id)]).toEqual([name, [id]])
    }
  })

  it('with a key of 65 code points is refused with an error that counts code points', async () => {
    await using service = await startService()
    const metadata = mapOf(`a${'😀'.repeat(64)}`, 'x')
    const error = await errorOf((await PLACES['POST /v1/jobs']?.(service, metadata)) as Response)
    expect(error).toMatchObject({ code: 'string_above_max_length', message: expect.stringContaining('length 65') })
    for (const text of [error.message, error.param]) expect(String(text)).not.toMatch(/\p{Surrogate}|\ufffd/u)
  })
})

describe('keys such as __proto__ in the maps of a request', () => {
  test.each(NAMES)('are refused in logit_bias: %j', async (name) => {
    await using service = await startService()
    const response = await service.post(CHAT, say('x', { logit_bias: mapOf(name, 1) }))
    expect(await errorOf(response)).toMatchObject({ type: 'invalid_request_error', param: `logit_bias.${name}` })
  })

  test.each(NAMES.slice(0, 5))('are accepted as names of tool parameters: %s', async (name) => {
    await using service = await startService()
    const parameters = { type: 'object', properties: mapOf(name, { type: 'integer' }), required: [name] }
    const tools = [{ type: 'function', function: { name: 'f', parameters } }]
    const answer = await jsonOf(await service.post(CHAT, say('x', { tools, tool_choice: 'required' })))
    const called = JSON.parse(answer.choices[0].message.tool_calls[0].function.arguments)
    expect([name, Object.hasOwn(called, name)]).toEqual([name, true])
  })

  it('remain own properties in the records that processes exchange', () => {
    const schema = z.strictObject({ map: recordOf(z.string().max(11), z.int()).nullish() })
    const given = JSON.parse('{"map":{"__proto__":1,"constructor":2}}')
    for (const reader of [schema, tolerant(schema)]) {
      expect(JSON.parse(JSON.stringify(reader.parse(given)))).toEqual(given)
      expect(reader.safeParse(JSON.parse('{"map":{"__proto__":"x"}}')).success).toBe(false)
    }
    const narrow = z.object({ map: recordOf(z.string().max(3), z.int()) })
    const issues = narrow.safeParse(given).error?.issues.map(({ code, path }) => [code, path.at(-1)])
    expect(issues).toContainEqual(['invalid_key', '__proto__'])
  })

  it('are preserved by every schema except the schema of models.yaml', async () => {
    const files = (await readdir('schemas', { recursive: true })).filter((file) => /\.ts$/.test(file))
    const plain = await Promise.all(
      files
        .filter((file) => !['record.ts', 'models.ts'].includes(file) && !file.startsWith('answers/'))
        .map(async (file) =>
          (await readFile(`schemas/${file}`, 'utf8')).includes('z.record(z.string()') ? [file] : [],
        ),
    )
    expect(plain.flat()).toEqual([])
  })
})
