import { z } from 'zod'

const PROTO = '__proto__'

/** A zod record that treats `__proto__` as an ordinary key, as `JSON.parse` does. The type `z.record` of zod drops this key without validation. */
const OwnRecord = z.core.$constructor('OwnRecord', (inst: z.ZodRecord, def: z.core.$ZodRecordDef) => {
  z.ZodRecord.init(inst, def)
  const parse = inst._zod.parse
  inst._zod.parse = (payload, context) => {
    const { value: input } = payload
    const parsed = parse(payload, context)
    if (typeof input !== 'object' || input === null || !Object.hasOwn(input, PROTO) || parsed instanceof Promise)
      return parsed
    const key = run(def.keyType, PROTO, context)
    const value = run(def.valueType, (input as Record<string, unknown>)[PROTO], context)
    if (key.issues.length > 0) {
      const issues = key.issues.map((issue) => z.core.util.finalizeIssue(issue, context, z.core.config()))
      parsed.issues.push({ code: 'invalid_key', origin: 'record', issues, input: PROTO, path: [PROTO], inst })
    }
    parsed.issues.push(...z.core.util.prefixIssues(PROTO, value.issues))
    Object.defineProperty(parsed.value, PROTO, {
      value: value.value,
      enumerable: true,
      writable: true,
      configurable: true,
    })
    return parsed
  }
})

function run(schema: z.core.$ZodType, value: unknown, context: z.core.ParseContextInternal): z.core.ParsePayload {
  const result = schema._zod.run({ value, issues: [] }, context)
  if (result instanceof Promise) throw new z.core.$ZodAsyncError()
  return result
}

/** A `z.record` that also validates the key `__proto__`. Every map with keys chosen by the client must use this function. */
export function recordOf<Key extends z.core.$ZodRecordKey, Value extends z.ZodType>(
  keyType: Key,
  valueType: Value,
): z.ZodRecord<Key, Value> {
  return new OwnRecord({ type: 'record', keyType, valueType }) as unknown as z.ZodRecord<Key, Value>
}

/** Metadata of a client: pairs of text. The function `boundMetadata` limits their number. */
export const Metadata = recordOf(z.string().max(64), z.string().max(512))
