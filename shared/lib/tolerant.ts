import { z } from 'zod'

const readers = new WeakMap<z.core.$ZodType, z.core.$ZodType>()

/**
 * Returns a schema for reading records of other versions. Unknown fields are removed at every depth, and known fields are checked as in the given
 * schema.
 *
 * The schemas in `schemas/` are strict, because they define exactly the fields that this version writes. During a rolling upgrade, records of other
 * versions may have further fields.
 */
export function tolerant<S extends z.core.$ZodType>(schema: S): S {
  const known = readers.get(schema)
  if (known) return known as S
  const reader = rebuild(schema as unknown as z.core.$ZodTypes)
  readers.set(schema, reader)
  return reader as S
}

function rebuild(schema: z.core.$ZodTypes): z.core.$ZodType {
  const { def } = schema._zod
  switch (def.type) {
    case 'object': {
      const shape = Object.fromEntries(Object.entries(def.shape).map(([name, field]) => [name, tolerant(field)]))
      const { catchall, ...rest } = def
      const isStrict = catchall?._zod.def.type === 'never'
      return z.core.clone(schema, { ...rest, shape, ...(catchall && !isStrict && { catchall }) } as never)
    }
    case 'array':
      return z.core.clone(schema, { ...def, element: tolerant(def.element) } as never)
    case 'union':
      return z.core.clone(schema, { ...def, options: def.options.map((option) => tolerant(option)) } as never)
    case 'record':
      return z.core.clone(schema, { ...def, valueType: tolerant(def.valueType) } as never)
    case 'optional':
    case 'nullable':
    case 'default':
    case 'catch':
      return z.core.clone(schema, { ...def, innerType: tolerant(def.innerType) } as never)
    default:
      return schema
  }
}
