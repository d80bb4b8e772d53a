/*
 * Node's WebAssembly (WebAssembly JavaScript Interface). TypeScript declares it with the browser's other globals only, so
 * here is as much of it as is used.
 */

/** Compiled code; threads share it. */
export interface Module {
  readonly [Symbol.toStringTag]: 'WebAssembly.Module'
}

/** What compiled code works on. `buffer` is another one after each growth. */
export interface Memory {
  readonly buffer: ArrayBuffer
  /** @throws RangeError beyond its maximum */
  grow(pages: number): number
}

interface WebAssembly {
  compile(bytes: Uint8Array<ArrayBuffer>): Promise<Module>
  readonly Instance: new (module: Module, imports: object) => { readonly exports: object }
}

/** Compiles a module and makes instances of it. */
export const { compile, Instance } = (globalThis as unknown as { WebAssembly: WebAssembly }).WebAssembly
