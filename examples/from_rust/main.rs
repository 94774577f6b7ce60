//! Runs the first entry of an artifact whose one input is a float32 tensor:
//!
//!     rustc main.rs -L DIR -l dylib=lampwork_runtime && LD_LIBRARY_PATH=DIR ./main m.lamp 4 16
//!
//! with ones of the sizes that follow the file.
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr::{null, null_mut};

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    dtype: c_int,
    ndim: i32,
    shape: *const i64,
    strides: *const i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Options {
    size: usize,
    trust: c_int,
    threads: c_int,
    target: *const c_char,
    keys: *const *const c_char,
    n_keys: usize,
}

const FLOAT32: c_int = 1;

extern "C" {
    fn lw_error() -> *const c_char;
    fn lw_default_options() -> Options;
    fn lw_load(path: *const c_char, options: *const Options, model: *mut *mut c_void) -> c_int;
    fn lw_free(model: *mut c_void);
    fn lw_run(
        model: *mut c_void,
        entry: usize,
        inputs: *const Tensor,
        n_inputs: usize,
        numbers: *const i64,
        n_numbers: usize,
        result: *mut *mut c_void,
    ) -> c_int;
    fn lw_result_tensor(result: *const c_void, output: usize, tensor: *mut Tensor) -> c_int;
    fn lw_result_free(result: *mut c_void);
}

fn check(status: c_int) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(lw_error()) }.to_string_lossy().into_owned()),
    }
}

struct Model(*mut c_void);

impl Model {
    fn load(path: &str) -> Result<Model, String> {
        let path = CString::new(path).map_err(|error| error.to_string())?;
        let mut model = null_mut();
        unsafe {
            let options = Options { trust: 1, ..lw_default_options() };
            check(lw_load(path.as_ptr(), &options, &mut model))?;
        }
        Ok(Model(model))
    }

    /// The elements of the first result, which is float32 and lies in rows, and its sizes.
    fn run(&self, elements: &mut [f32], shape: &[i64]) -> Result<(Vec<f32>, Vec<i64>), String> {
        assert_eq!(shape.iter().product::<i64>(), elements.len() as i64);
        let data = elements.as_mut_ptr().cast();
        let input = Tensor { data, dtype: FLOAT32, ndim: shape.len() as i32, shape: shape.as_ptr(), strides: null() };
        let mut result = null_mut();
        let mut output = Tensor { data: null_mut(), dtype: 0, ndim: 0, shape: null(), strides: null() };
        unsafe {
            check(lw_run(self.0, 0, &input, 1, null(), 0, &mut result))?;
            let found = check(lw_result_tensor(result, 0, &mut output)).map(|()| {
                let shape = std::slice::from_raw_parts(output.shape, output.ndim as usize).to_vec();
                let count = shape.iter().product::<i64>() as usize;
                assert_eq!(output.dtype, FLOAT32);
                (std::slice::from_raw_parts(output.data.cast::<f32>(), count).to_vec(), shape)
            });
            lw_result_free(result);
            found
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        unsafe { lw_free(self.0) }
    }
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let shape: Vec<i64> = arguments[1..].iter().map(|size| size.parse().expect("a size")).collect();
    let mut ones = vec![1.0; shape.iter().product::<i64>() as usize];
    let (elements, shape) = Model::load(&arguments[0])?.run(&mut ones, &shape)?;
    println!("{shape:?} {:?}", &elements[..elements.len().min(4)]);
    Ok(())
}
